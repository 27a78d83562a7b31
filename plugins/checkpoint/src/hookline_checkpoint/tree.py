"""Splits a nested structure, such as a `state_dict()`, into named arrays and a JSON description, and joins them again.

The structure has dictionaries, lists and tuples of arrays and plain values. In the description

    {"dict": [[key, node], ...]}    is a dictionary, in its order; a key is a string, an integer, a boolean or null
    {"list": [node, ...]}           is a list, and {"tuple": [node, ...]} a tuple
    {"array": name}                 is an array, with "torch": true for a torch tensor
    {"float": "nan"}                is a float that JSON does not have: "nan", "inf" or "-inf"
    null, true, 3, 0.5, "text"      are themselves

A NumPy scalar is an array without dimensions. An array's name is its path, joined by dots, so the arrays of a policy
are named by the keys of its `state_dict()`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any, Final

from hookline_checkpoint.arrays import TYPES, Arrays, StoredArray, is_torch_tensor, type_name
from hookline_checkpoint.errors import CheckpointError, InvalidCheckpointError

__all__ = ["holds_arrays", "join_tree", "split_tree"]

RESERVED: Final = "__metadata__"
"""A name that the safetensors format reserves."""


def holds_arrays(tree: object) -> bool:
    """Whether there is an array anywhere in a structure."""
    if isinstance(tree, dict):
        return any(map(holds_arrays, tree.values()))
    if isinstance(tree, (list, tuple)):
        return any(map(holds_arrays, tree))
    return _is_array(tree)


def _is_array(leaf: object) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def split_tree(tree: object, what: str) -> tuple[Arrays, Any]:
    """The arrays of a structure by name, not copied, and the description of the structure.

    :param what: the name of the structure in error messages.
    """
    arrays: Arrays = {}
    return arrays, _split(tree, (), what, arrays)


def _split(node: object, path: tuple[object, ...], what: str, arrays: Arrays) -> Any:
    if node is None or isinstance(node, (bool, int, str)):
        return node
    if _is_array(node):
        name = _free_name(path, arrays)
        _check_type(node, _shown(what, path))
        arrays[name] = node
        return {"array": name, "torch": True} if is_torch_tensor(node) else {"array": name}
    if isinstance(node, float):
        return node if math.isfinite(node) else {"float": str(node)}
    if isinstance(node, dict):
        return {"dict": [[_key(k, path, what), _split(v, (*path, k), what, arrays)] for k, v in node.items()]}
    # Not a named tuple, which would come back as a plain tuple and fail later, where its fields are used.
    if isinstance(node, list) or type(node) is tuple:
        kind = "list" if isinstance(node, list) else "tuple"
        return {kind: [_split(value, (*path, index), what, arrays) for index, value in enumerate(node)]}
    raise CheckpointError(
        f"{_shown(what, path)} is a {type(node).__name__}, which a checkpoint cannot hold: "
        "it takes dictionaries, lists and tuples of arrays, numbers, strings, booleans and None"
    )


def _key(key: object, path: tuple[object, ...], what: str) -> object:
    if key is None or isinstance(key, (bool, int, str)):
        return key
    raise CheckpointError(
        f"{_shown(what, path)} has the key {key!r}, which a checkpoint cannot hold: "
        "keys must be strings, integers, booleans or None"
    )


def _free_name(path: tuple[object, ...], arrays: Arrays) -> str:
    name = candidate = ".".join(map(str, path)) or "array"
    number = 2
    # Two paths may give the same name: {"a.b": x} and {"a": {"b": x}}, or the keys 1 and "1".
    while candidate in arrays or candidate == RESERVED:
        candidate, number = f"{name}#{number}", number + 1
    return candidate


def _check_type(leaf: Any, where: str) -> None:
    if type_name(leaf) not in TYPES:
        raise CheckpointError(
            f"{where} is an array of {leaf.dtype}, which a checkpoint cannot hold: "
            "keep it in a type such as float32 or bfloat16, and cast where you compute"
        )


def _shown(what: str, path: tuple[object, ...]) -> str:
    return what + "".join(f"[{key!r}]" for key in path)


def join_tree(description: Any, arrays: Mapping[str, StoredArray]) -> Any:
    """The structure that `split_tree` split. Torch tensors come back as such if torch is imported."""
    if not isinstance(description, dict):
        return description
    match description:
        case {"dict": list(pairs)}:
            return {key: join_tree(value, arrays) for key, value in pairs}
        case {"list": list(values)}:
            return [join_tree(value, arrays) for value in values]
        case {"tuple": list(values)}:
            return tuple(join_tree(value, arrays) for value in values)
        case {"float": "nan" | "inf" | "-inf" as value}:
            return float(value)
        case {"array": str(name)} if name in arrays:
            torch = sys.modules.get("torch")
            was_tensor = description.get("torch") is True
            return arrays[name].as_torch(torch) if was_tensor and torch is not None else arrays[name].as_numpy()
        case {"array": str(name)}:
            raise InvalidCheckpointError(f"the array {name!r} is missing")
    raise InvalidCheckpointError(f"invalid description of a structure: {str(description)[:80]!r}")
