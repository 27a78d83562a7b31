"""Writes arrays as a safetensors file into a reused buffer, and reads them back.

The file is written here, not by the `safetensors` package, so that a snapshot is a single copy into the buffer that the
writer reads from. The package reads the files, since it checks untrusted ones thoroughly.

NumPy and `safetensors` are imported where they are used: every command imports this module, and few save or load.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
import sys
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, TypeAlias

from hookline_checkpoint.errors import CheckpointError, InvalidCheckpointError

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

__all__ = [
    "Arrays",
    "ReusedBuffer",
    "StoredArray",
    "check_header",
    "in_shards",
    "is_torch_tensor",
    "read_arrays",
    "size_of",
    "type_name",
]

Arrays: TypeAlias = dict[str, Any]
"""Live arrays of any framework by name. They change as training goes on."""


class StoredType(NamedTuple):
    """The safetensors code of a dtype, and its size in bytes."""

    code: str
    size: int


TYPES: Final = {
    "bool": StoredType("BOOL", 1),
    "int8": StoredType("I8", 1),
    "uint8": StoredType("U8", 1),
    "int16": StoredType("I16", 2),
    "uint16": StoredType("U16", 2),
    "float16": StoredType("F16", 2),
    "bfloat16": StoredType("BF16", 2),
    "int32": StoredType("I32", 4),
    "uint32": StoredType("U32", 4),
    "float32": StoredType("F32", 4),
    "int64": StoredType("I64", 8),
    "uint64": StoredType("U64", 8),
    "float64": StoredType("F64", 8),
    "complex64": StoredType("C64", 8),
}
"""The dtypes that a checkpoint supports, by the name that NumPy, torch, JAX and MLX share."""

HEADER_LIMIT: Final = 100_000_000
"""Largest header in bytes, as in the `safetensors` package."""

WITHOUT_NUMPY: Final = ("bfloat16", "complex64")
"""Tensors that `numpy()` refuses, those of complex numbers only if they are conjugates."""

NAMES: Final = {stored.code: name for name, stored in TYPES.items()}


def type_name(array: Any) -> str:
    """The name of an array's dtype, such as `float32` for `torch.float32` and `mlx.core.float32`."""
    return _name_of(array.dtype)


@cache
def _name_of(dtype: Any) -> str:
    return str(getattr(dtype, "name", dtype)).rpartition(".")[2]


def is_torch_tensor(leaf: object) -> bool:
    # If torch is not imported, there are no torch tensors. Importing it here would take seconds.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(leaf, torch.Tensor)


# -- writing ----------------------------------------------------------------------------------------------------------


class ReusedBuffer:
    """A buffer for the arrays of one file. It is allocated once, and again only if the arrays grow."""

    def __init__(self) -> None:
        self._grow(0)

    def _grow(self, size: int) -> None:
        import numpy

        self._memory = numpy.empty(size, numpy.uint8)

    def reserve(self, size: int) -> None:
        """Allocate the buffer and touch every page, since the system provides memory only when it is written to."""
        if len(self._memory) < size:
            self._grow(size)
            self._memory[:: mmap.PAGESIZE] = 0

    def fill(self, arrays: Mapping[str, Any]) -> list[bytes | memoryview]:
        """Copy arrays into the buffer, and return the bytes of their file. They are valid until the next call."""
        header, size = _lay_out(arrays)
        if len(self._memory) < size:
            self._grow(size)
        for name, entry in header.items():
            start, stop = entry["data_offsets"]
            _copy(name, arrays[name], self._memory[start:stop])
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return [struct.pack("<Q", len(text)) + text, self._memory[:size].data]


def in_shards(arrays: Mapping[str, Any], largest: int) -> list[Arrays]:
    """The arrays, in their order, divided among files of at most `largest` bytes. An array is never divided."""
    shards: list[Arrays] = [{}]
    size = 0
    for name, array in arrays.items():
        own = _size(array)
        if shards[-1] and size + own > largest:
            shards.append({})
            size = 0
        shards[-1][name] = array
        size += own
    return shards


def size_of(arrays: Mapping[str, Any]) -> int:
    """The size of the arrays in bytes."""
    return sum(map(_size, arrays.values()))


def _size(array: Any) -> int:
    return TYPES[type_name(array)].size * int(math.prod(array.shape))


def _lay_out(arrays: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], int]:
    """The header of the file, with the position of each array, and the total size."""
    header: dict[str, dict[str, Any]] = {}
    end = 0
    types = {name: TYPES[type_name(array)] for name, array in arrays.items()}
    # Larger dtypes first, so that every array is aligned.
    for name in sorted(arrays, key=lambda name: -types[name].size):
        start, stored = end, types[name]
        shape = [int(length) for length in arrays[name].shape]
        end = start + math.prod(shape) * stored.size
        header[name] = {"dtype": stored.code, "shape": shape, "data_offsets": [start, end]}
    return header, end


def _copy(name: str, array: Any, target: NDArray[numpy.uint8]) -> None:
    import numpy

    try:
        of_type = type_name(array)
        if is_torch_tensor(array):
            array = array.detach() if array.requires_grad else array
            if array.device.type != "cpu" or of_type in WITHOUT_NUMPY:
                torch: Any = sys.modules["torch"]
                torch.from_numpy(target).view(array.dtype).view(array.shape).copy_(array)
                return
            array = array.numpy()
        if of_type == "bfloat16":
            source = numpy.asarray(_bits_of_bfloat16(array))
            as_type = numpy.dtype("uint16")
        else:
            source = numpy.asarray(array)
            as_type = numpy.dtype(of_type)
        numpy.copyto(target.view(as_type.newbyteorder("<")).reshape(source.shape), source)
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"the array {name!r}, a {type(array).__name__}, cannot be copied: {error}") from error


def _bits_of_bfloat16(array: Any) -> Any:
    """The same bits as uint16, since NumPy has no bfloat16."""
    import numpy

    mlx = sys.modules.get("mlx.core")
    if mlx is not None and isinstance(array, mlx.array):
        return array.view(mlx.uint16)
    return numpy.asarray(array).view("uint16")


# -- reading ----------------------------------------------------------------------------------------------------------


class StoredArray(NamedTuple):
    """An array of a file, before it is converted for a framework."""

    name: str
    type: str
    shape: tuple[int, ...]
    data: bytearray

    def as_numpy(self) -> NDArray[Any]:
        if self.type != "bfloat16":
            return self._numbers(self.type)
        try:
            import ml_dtypes
        except ImportError:
            raise CheckpointError(
                f"the array {self.name!r} is of bfloat16, which NumPy has only with ml_dtypes: "
                'pip install "hookline-checkpoint[bfloat16]"'
            ) from None
        return self._numbers("uint16").view(ml_dtypes.bfloat16)

    def as_torch(self, torch: Any) -> Any:
        if self.type != "bfloat16":
            return torch.from_numpy(self._numbers(self.type))
        return torch.from_numpy(self._numbers("int16")).view(torch.bfloat16)

    def _numbers(self, of_type: str) -> NDArray[Any]:
        import numpy

        return numpy.frombuffer(self.data, numpy.dtype(of_type).newbyteorder("<")).reshape(self.shape)


def check_header(file: BinaryIO, size: int) -> None:
    """Raise an error if the header does not fit a file of this size. Leaves the file at its beginning."""
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= min(HEADER_LIMIT, size - 8):
        raise InvalidCheckpointError(f"its arrays cannot be read: a header of {length} bytes in a file of {size}")
    try:
        header = json.loads(file.read(length))
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
        is_whole = 8 + length + end == size
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise InvalidCheckpointError(f"its arrays cannot be read: {error!r:.100}") from error
    if not is_whole:
        raise InvalidCheckpointError(
            f"its arrays cannot be read: they need {end} bytes, the file has {size - 8 - length}"
        )
    file.seek(0)


def read_arrays(data: bytes) -> dict[str, StoredArray]:
    """The arrays of a safetensors file by name."""
    import safetensors

    try:
        found: list[tuple[str, Any]] = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise InvalidCheckpointError(f"its arrays cannot be read: {error}") from error
    unknown = sorted({entry["dtype"] for _, entry in found} - NAMES.keys())
    if unknown:
        raise InvalidCheckpointError(f"it has arrays of {', '.join(unknown)}, which checkpoints do not support")
    return {
        name: StoredArray(name, NAMES[entry["dtype"]], tuple(entry["shape"]), entry["data"]) for name, entry in found
    }
