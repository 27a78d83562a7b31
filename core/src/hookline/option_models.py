"""Classes of options: the docstrings of their fields, and pydantic's errors as config faults with a "did you mean".

Importing this module imports no pydantic: most commands have nothing to validate.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from hookline.errors import ConfigFault, did_you_mean
from hookline_hookspecs.redaction import REDACTED, redact
from hookline_hookspecs.secret_names import is_secret_name

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

__all__ = ["declared_secrets", "field_docs", "field_names", "is_pydantic_model", "validation_faults"]

Path = Sequence[str | int]
"""The keys and list indices that lead to a value."""


def field_docs(kind: Any) -> Mapping[str, str]:
    """The docstring below each field of a class, read from the source. Empty where there is no source."""
    docs: dict[str, str] = {}
    for own in reversed(kind.__mro__[:-1]):
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(own))).body
        except (OSError, TypeError):
            continue
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for field, below in itertools.pairwise(body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[name] = text
    return docs


def is_pydantic_model(model: Any) -> bool:
    """Whether a type is a subclass of pydantic's `BaseModel`."""
    return isinstance(model, type) and "__pydantic_fields__" in dir(model) and hasattr(model, "model_validate")


def field_names(model: Any) -> list[str]:
    """The keys of a pydantic model or dataclass; none for other types."""
    if is_pydantic_model(model):
        return [info.alias or name for name, info in model.model_fields.items()]
    if dataclasses.is_dataclass(model):
        return [own.name for own in dataclasses.fields(model) if own.init]
    return []


def validation_faults(
    error: ValidationError, model: Any, locate: Callable[[Path], str] = lambda path: ".".join(map(str, path))
) -> list[ConfigFault]:
    """One fault for each of pydantic's errors. `locate` returns the source of a path of keys."""
    return [
        ConfigFault(locate(details["loc"]), _problem(details, model)) for details in error.errors(include_url=False)
    ]


def declared_secrets(declared: Any, value: Any) -> Iterator[Any]:
    """The parts of an unvalidated value whose declared type is a pydantic secret, such as `SecretStr`."""
    if hasattr(declared, "get_secret_value"):
        yield value
    elif field_names(declared) and isinstance(value, dict):
        for key, inner in value.items():
            yield from declared_secrets(_model_at(declared, [key]), inner)
    else:
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        for part in get_args(declared):
            for inner in (value, *inside):
                yield from declared_secrets(part, inner)


def _problem(details: ErrorDetails, model: Any) -> str:
    key = str(details["loc"][-1]) if details["loc"] else ""
    if details["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        known = field_names(_model_at(_without_none(model), details["loc"][:-1]))
        hint = did_you_mean(key, known) or (f"; known are {', '.join(sorted(known))}" if known else "")
        return f"unknown key {key!r}{hint}"
    if details["type"].startswith("missing"):
        return "is required"
    problem = details["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    problem = problem[:1].lower() + problem[1:]
    if isinstance(details["input"], dict):  # the input is the whole table, and the message names the key
        return problem
    is_secret = any(is_secret_name(str(key)) for key in details["loc"])
    return f"{problem}, got {REDACTED if is_secret else redact(details['input'])!r}"


def _model_at(model: Any, path: Path) -> Any:
    """The type at a path of keys and list indices; None if it is unknown."""
    for key in path:
        if is_pydantic_model(model):
            fields = model.model_fields
            model = next((info.annotation for name, info in fields.items() if key in (name, info.alias)), None)
        elif dataclasses.is_dataclass(model):
            model = get_type_hints(model).get(str(key))
        elif isinstance(key, int):
            model = next(iter(get_args(model)), None)
        else:
            return None
        model = _without_none(model)
    return model


def _without_none(hint: Any) -> Any:
    """The type `T` of `T | None`. Other types are returned as they are."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    others = [own for own in get_args(hint) if own is not NoneType]
    return others[0] if len(others) == 1 else hint
