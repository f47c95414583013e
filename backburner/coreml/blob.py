"""Writes weight.bin of a page from a manifest and K and V, without coremltools.

The Swift worker mirrors this file: loops over constants, power-of-two scaling, rounding to fp16, nothing else.

The format (coremltools, mlmodel/src/MILBlob/Blob/StorageFormat.hpp), all little-endian: a header of 64 bytes (u32
count, u32 version 2, zeros); then for each constant, both parts aligned to 64 bytes, metadata of 64 bytes (u32
0xDEADBEEF, u32 dtype, u64 bytes, u64 data offset, zeros) and the data.
"""

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from backburner.coreml.layout import RECORD_BYTES, Constant
from backburner.coreml.manifest import Manifest
from backburner.coreml.shape import SUM_LOG2
from backburner.errors import BakeRefused, ConfigError

Image = npt.NDArray[np.uint8]  # the bytes of weight.bin
F32 = npt.NDArray[np.float32]

STORAGE_VERSION = 2
SENTINEL = 0xDEADBEEF
BLOB_DTYPES = {"float16": 1, "int8": 4}
NUMPY_DTYPES: dict[str, np.dtype[Any]] = {"float16": np.dtype("<f2"), "int8": np.dtype("i1")}


def new_image(manifest: Manifest) -> Image:
    """weight.bin with its header, every metadata record and the constants that no page changes; zeros elsewhere."""
    image = np.zeros(manifest.file_bytes, np.uint8)
    image[:RECORD_BYTES] = _header(manifest)
    for one in manifest.constants:
        image[one.metadata_offset : one.data_offset] = _record(one)
        if one.role == "ones":
            array_of(image, one)[...] = 2.0**SUM_LOG2
    return image


def check_image(manifest: Manifest, image: Image) -> None:
    """Raises ConfigError for bytes that are not a weight.bin of this manifest, whatever its K and V."""
    if image.size != manifest.file_bytes:
        raise ConfigError(f"weight.bin has {image.size} bytes instead of {manifest.file_bytes}.")
    if not np.array_equal(image[:RECORD_BYTES], _header(manifest)):
        raise ConfigError("weight.bin does not begin as the manifest says.")
    for one in manifest.constants:
        same = np.array_equal(image[one.metadata_offset : one.data_offset], _record(one))
        if not same or (one.role == "ones" and not (array_of(image, one) == 2.0**SUM_LOG2).all()):
            raise ConfigError(f"weight.bin does not have {one.name} where the manifest says.")


def _header(manifest: Manifest) -> Image:
    return _padded(struct.pack("<II", len(manifest.constants), STORAGE_VERSION))


def _record(one: Constant) -> Image:
    return _padded(struct.pack("<IIQQ", SENTINEL, BLOB_DTYPES[one.dtype], one.bytes, one.data_offset))


def _padded(data: bytes) -> Image:
    return np.frombuffer(data.ljust(RECORD_BYTES, b"\0"), np.uint8)


def array_of(image: Image, constant: Constant) -> npt.NDArray[Any]:
    """A constant's own memory in the file, in its shape."""
    raw = image[constant.data_offset : constant.data_offset + constant.bytes]
    return raw.view(NUMPY_DTYPES[constant.dtype]).reshape(constant.shape)


def value_exponents(v: npt.NDArray[Any]) -> npt.NDArray[np.int16]:
    """e for each kv head and channel, so that |v| 2^-e < 2^SUM_LOG2. v: [kv_heads, rows, head_dim]."""
    largest = np.abs(widen(v)).max(axis=1)
    _, exponent = np.frexp(largest)  # largest = f 2^exponent with f in [1/2, 1); 0 for 0
    return np.where(largest == 0, 0, exponent - SUM_LOG2).astype(np.int16)


def widen(x: npt.NDArray[Any]) -> F32:
    """float16, float32, or bfloat16 as uint16 bits, as float32."""
    if x.dtype == np.uint16:
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float32, copy=False)


def patch(
    manifest: Manifest, image: Image, k: npt.NDArray[Any], v: npt.NDArray[Any]
) -> npt.NDArray[np.int16]:
    """Puts rows 0.. of a page into weight.bin and masks the rest; changes no other byte. Returns V's exponents.

    k, v: [kv_heads, filled, head_dim]. `image` may be a mapped file. Raises BakeRefused for what fp16 cannot hold.
    """
    shape = manifest.shape
    filled = k.shape[1] if k.ndim == 3 else 0
    if k.shape != (shape.kv_heads, filled, shape.head_dim) or v.shape != k.shape:
        raise BakeRefused(
            f"K {k.shape} and V {v.shape} do not fit {shape.kv_heads} heads of {shape.head_dim}."
        )
    if not 0 < filled <= shape.page_tokens:
        raise BakeRefused(f"{filled} rows do not fit a page of {shape.page_tokens}.")
    if image.size != manifest.file_bytes:
        raise BakeRefused(f"weight.bin has {image.size} bytes instead of {manifest.file_bytes}.")
    _check_fp16(k, v)
    exponents = value_exponents(v)
    int8 = shape.weights == "int8"
    v_steps = _value_steps(v, exponents) if int8 else None
    for one in manifest.constants:
        array = array_of(image, one)
        if one.role == "mask":
            _patch_mask(manifest, array, one, filled)
        elif one.role == "k" and not int8:
            _patch_keys(array, one, k)
        elif one.role == "v":
            _patch_values(array, one, v, exponents, v_steps)
        elif one.role == "k_scale":
            steps = _key_steps(_rows(k, one)[0])
            flat = array.reshape(one.heads, one.rows)
            flat[...] = 0
            flat[:, : steps.shape[1]] = steps
        elif one.role == "v_scale" and v_steps is not None:
            array.reshape(one.heads, -1)[...] = v_steps[one.first_head : one.first_head + one.heads]
        elif one.role == "k":
            _patch_integer_keys(array, one, k)
    return exponents


def _check_fp16(k: npt.NDArray[Any], v: npt.NDArray[Any]) -> None:
    # NaN fails the comparison, too. A block of rows at a time would save little: this is a twentieth of the bake.
    if not np.abs(widen(k)).max() <= 65504:
        raise BakeRefused("K has values that fp16 cannot hold.")
    if not np.abs(widen(v)).max() < np.inf:
        raise BakeRefused("V has values that are not finite.")


def _rows(x: npt.NDArray[Any], one: Constant) -> tuple[F32, int]:
    """The constant's heads and rows of K or V, as far as they exist, and how many rows that is."""
    rows = widen(x[one.first_head : one.first_head + one.heads, one.first_row : one.first_row + one.rows])
    return rows, rows.shape[1]


def _patch_mask(manifest: Manifest, array: npt.NDArray[Any], one: Constant, filled: int) -> None:
    flat = array.reshape(-1)
    flat[...] = manifest.mask_value
    flat[: max(0, filled - one.first_row)] = 0


def _patch_keys(array: npt.NDArray[Any], one: Constant, k: npt.NDArray[Any]) -> None:
    rows, count = _rows(k, one)
    flat = array.reshape(one.heads, one.rows, -1)
    head_dim = rows.shape[2]
    flat[:, :count, :head_dim] = rows  # rounds to nearest even
    flat[:, count:, :head_dim] = 0
    flat[:, :, head_dim:] = 1  # the estimate's channel, if there is one


def _patch_values(
    array: npt.NDArray[Any],
    one: Constant,
    v: npt.NDArray[Any],
    exponents: npt.NDArray[np.int16],
    steps: npt.NDArray[np.float16] | None,
) -> None:
    rows, count = _rows(v, one)
    heads = slice(one.first_head, one.first_head + one.heads)
    scaled = np.ldexp(rows, -exponents[heads, None, :].astype(np.int32))
    if steps is not None:
        scaled = _integers(scaled, steps[heads, None, :])
    flat = array.reshape(one.heads, -1, one.rows)
    flat[:, :, :count] = scaled.transpose(0, 2, 1)
    flat[:, :, count:] = 0


def _key_steps(rows: F32) -> npt.NDArray[np.float16]:
    """What a row's integers count in: its largest value is 127 steps. [heads, rows]"""
    steps: npt.NDArray[np.float16] = (np.abs(rows).max(axis=2) / np.float32(127)).astype(np.float16)
    return steps


def _value_steps(v: npt.NDArray[Any], exponents: npt.NDArray[np.int16]) -> npt.NDArray[np.float16]:
    """The same for each head and channel of the scaled V."""
    largest = np.ldexp(np.abs(widen(v)).max(axis=1), -exponents.astype(np.int32))
    steps: npt.NDArray[np.float16] = (largest / np.float32(127)).astype(np.float16)
    return steps


def _integers(x: F32, steps: npt.NDArray[np.float16]) -> npt.NDArray[np.int8]:
    safe = np.where(steps == 0, np.float32(1), steps.astype(np.float32))
    # The step was rounded to fp16, perhaps down: 127.4 steps are 127.
    integers: npt.NDArray[np.int8] = np.clip(np.rint(x / safe), -127, 127).astype(np.int8)
    return integers


def _patch_integer_keys(array: npt.NDArray[Any], one: Constant, k: npt.NDArray[Any]) -> None:
    rows, count = _rows(k, one)
    flat = array.reshape(one.heads, one.rows, -1)
    flat[:, :count] = _integers(rows, _key_steps(rows)[:, :, None])
    flat[:, count:] = 0
