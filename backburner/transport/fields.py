"""What a meta value may be: one reader for each type of field, strict about type and range."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import msgpack  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt

from backburner.transport.frames import Buffer, aligned

Array: TypeAlias = npt.NDArray[Any]
Reader: TypeAlias = Callable[[Any], Any]

# numpy has no bfloat16: its bits travel in uint16 arrays, here and on the wire alike.
DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
    "uint8": np.dtype("u1"),
    "int32": np.dtype("<i4"),
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}

# 1,024 pages are 4 M tokens. msgpack reserves an array's memory by its declared length, up to 1,024 nested
# levels deep, so this bound is also what keeps a hostile 5 KB meta from reserving more than 8 MB.
ITEMS_MAX = 1024
STRING_MAX = 4096
# The map itself is one; our deepest value, a tensor's shape, is the third. Python's repr of 1,000 nested arrays, as an
# error's text has it, would end in a RecursionError.
DEPTH_MAX = 16
KEY_BYTES_MIN, KEY_BYTES_MAX = 16, 64
DIMENSIONS_MAX = 4


def pack_meta(fields: dict[str, Any]) -> bytes:
    """The map in msgpack's shortest form, keys in the order given."""
    packed: bytes = msgpack.packb(fields)
    return packed


def unpack_meta(meta: bytes) -> dict[str, Any]:
    """Decodes the subset nil, bool, int, float, str, bin, array, map; ValueError for anything else."""
    try:
        fields = msgpack.unpackb(
            meta,
            max_str_len=STRING_MAX,
            max_bin_len=STRING_MAX,
            max_array_len=ITEMS_MAX,
            max_map_len=ITEMS_MAX,
            max_ext_len=0,
            ext_hook=_no_ext,
        )
    except msgpack.exceptions.UnpackException as error:
        raise ValueError(f"meta is not msgpack: {error}") from None
    if type(fields) is not dict:
        raise ValueError("meta is not a map")
    _check_depth(fields, DEPTH_MAX)
    return fields


def _check_depth(outer: Any, levels: int) -> None:
    """ValueError if there are more levels in `outer`, itself included."""
    if not levels:
        raise ValueError(f"meta is nested more than {DEPTH_MAX} deep")
    for item in outer.values() if type(outer) is dict else outer:
        if type(item) is list or type(item) is dict:
            _check_depth(item, levels - 1)


def _no_ext(code: int, data: bytes) -> None:
    raise ValueError(f"extension type {code} is outside the subset")


def integer(low: int, high: int) -> Reader:
    """An int in [low, high]; a bool is not one."""

    def read(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"{value!r:.40} is not an int in [{low}, {high}]")
        return value

    return read


u32 = integer(0, 2**32 - 1)
u64 = integer(0, 2**64 - 1)
positive = integer(1, 2**31 - 1)


def boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{value!r:.40} is not a bool")
    return value


def number(value: Any) -> float:
    """A finite float. Whole numbers are sent as floats too."""
    if not isinstance(value, float) or not math.isfinite(value):
        raise ValueError(f"{value!r:.40} is not a finite float")
    return value


def text(value: Any) -> str:
    if type(value) is not str or len(value.encode()) > STRING_MAX:
        raise ValueError(f"{value!r:.40} is not a str of at most {STRING_MAX} bytes")
    return value


def blob(value: Any) -> bytes:
    if type(value) is not bytes or len(value) > STRING_MAX:
        raise ValueError(f"{value!r:.40} is not a bin of at most {STRING_MAX} bytes")
    return value


def key(value: Any) -> bytes:
    """A page's name."""
    if type(value) is not bytes or not KEY_BYTES_MIN <= len(value) <= KEY_BYTES_MAX:
        raise ValueError(f"{value!r:.40} is not a page key of {KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes")
    return value


def tensor_dtype(value: Any) -> str:
    if type(value) is not str or value not in DTYPES:
        raise ValueError(f"{value!r:.40} is not a dtype of the wire ({', '.join(DTYPES)})")
    return value


def tensor(value: Any) -> Any:
    """Marks a field whose value lies in the body: `describe_tensor` and `read_tensor` are its codec."""
    raise AssertionError("a tensor is not a meta value")


def optional(reader: Reader) -> Reader:
    """Nil, or what `reader` takes."""
    return lambda value: None if value is None else reader(value)


optional_tensor = optional(tensor)


def list_of(reader: Reader) -> Reader:
    """An array of at most 1,024 items, as a tuple."""

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) > ITEMS_MAX:
            raise ValueError(f"not an array of at most {ITEMS_MAX} items")
        return tuple([reader(item) for item in value])

    return read


def describe_tensor(array: Array, end: int) -> tuple[list[Any], memoryview, int]:
    """An array's meta entry [dtype, shape, offset], its bytes and its end; `end` is the previous one's."""
    name = DTYPE_NAMES.get(array.dtype)
    if name is None:
        raise ValueError(f"dtype {array.dtype} does not cross the wire ({', '.join(DTYPES)})")
    if not 1 <= array.ndim <= DIMENSIONS_MAX or not array.size:
        raise ValueError(f"a tensor of shape {array.shape} does not cross the wire")
    data = (array if array.flags.c_contiguous else np.ascontiguousarray(array)).data.cast("B")
    offset = aligned(end)
    return [name, list(array.shape), offset], data, offset + data.nbytes


def read_tensor(entry: Any, body: Buffer, end: int) -> tuple[Array, int]:
    """A view of the body. Tensors lie in field order, each at the first aligned offset after the one before,
    which leaves no room for overlaps, holes or misalignment."""
    if type(entry) is not list or len(entry) != 3:
        raise ValueError("a tensor is [dtype, shape, offset]")
    name, shape, given_offset = entry
    dtype = DTYPES[tensor_dtype(name)]
    if type(shape) is not list or not 1 <= len(shape) <= DIMENSIONS_MAX:
        raise ValueError(f"a tensor has 1 to {DIMENSIONS_MAX} dimensions")
    size = dtype.itemsize
    for dimension in shape:
        size *= positive(dimension)
    offset = aligned(end)
    if type(given_offset) is not int or given_offset != offset:
        raise ValueError(f"tensor at offset {given_offset!r:.40}, expected {offset}")
    if offset + size > len(body):
        raise ValueError(f"tensor of {size} bytes at {offset} leaves the body of {len(body)}")
    return np.ndarray(shape, dtype, body, offset), offset + size
