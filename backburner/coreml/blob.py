"""Writes weight.bin of a page from a manifest and K and V, without coremltools.

The Swift worker mirrors this file: loops over constants, power-of-two scaling, rounding, nothing else. All rounding is
to nearest, halves to even: float32 to fp16, and `rint` (Swift's `.rounded(.toNearestOrEven)`).

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
    return _exponents(np.abs(widen(v)).max(axis=1))


def _exponents(largest: F32) -> npt.NDArray[np.int16]:
    # largest = f 2^exponent with f in [1/2, 1): Swift's `.exponent` is one less, its significand is in [1, 2).
    _, exponent = np.frexp(largest)
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
    largest_v = np.abs(widen(v)).max(axis=1)  # [kv_heads, head_dim]
    exponents = _exponents(largest_v)
    v_steps = _steps(np.ldexp(largest_v, -exponents.astype(np.int32)))  # for int8 alone
    for one in manifest.constants:
        array = array_of(image, one)
        match one.role, one.dtype:
            case "k", "float16":
                _patch_keys(array, one, k)
            case "k", "int8":
                _patch_integer_keys(array, one, k)
            case "k_scale", _:
                _patch_key_steps(array, one, k)
            case "v", "float16":
                _patch_values(array, one, _scaled_values(one, v, exponents))
            case "v", "int8":
                scaled = _scaled_values(one, v, exponents)
                _patch_values(array, one, _integers(scaled, v_steps[_heads(one), None, :]))
            case "v_scale", _:
                array.reshape(one.heads, -1)[...] = v_steps[_heads(one)]
            case "mask", _:
                _patch_mask(manifest, array, one, filled)
            case "ones", _:
                pass  # no page changes them
    return exponents


def _check_fp16(k: npt.NDArray[Any], v: npt.NDArray[Any]) -> None:
    # NaN fails the comparison, too. A block of rows at a time would save little: this is a twentieth of the bake.
    if not np.abs(widen(k)).max() <= 65504:
        raise BakeRefused("K has values that fp16 cannot hold.")
    if not np.abs(widen(v)).max() < np.inf:
        raise BakeRefused("V has values that are not finite.")


def _rows(x: npt.NDArray[Any], one: Constant) -> tuple[F32, int]:
    """The constant's heads and rows of K or V, as far as they exist, and how many rows that is."""
    rows = widen(x[_heads(one), one.first_row : one.first_row + one.rows])
    return rows, rows.shape[1]


def _heads(one: Constant) -> slice:
    return slice(one.first_head, one.first_head + one.heads)


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


def _patch_values(array: npt.NDArray[Any], one: Constant, values: npt.NDArray[Any]) -> None:
    """values: [heads, rows, head_dim], as the constant holds them, but rows come last there."""
    count = values.shape[1]
    flat = array.reshape(one.heads, -1, one.rows)
    flat[:, :, :count] = values.transpose(0, 2, 1)
    flat[:, :, count:] = 0


def _scaled_values(one: Constant, v: npt.NDArray[Any], exponents: npt.NDArray[np.int16]) -> F32:
    """V 2^-e of the constant's heads and rows, in float32: [heads, rows, head_dim]."""
    rows, _ = _rows(v, one)
    scaled: F32 = np.ldexp(rows, -exponents[_heads(one), None, :].astype(np.int32))
    return scaled


def _steps(largest: F32) -> npt.NDArray[np.float16]:
    """What integers count in: the largest value is 127 steps."""
    steps: npt.NDArray[np.float16] = (largest / np.float32(127)).astype(np.float16)
    return steps


def _key_steps(rows: F32) -> npt.NDArray[np.float16]:
    """One step for each row: [heads, rows]."""
    return _steps(np.abs(rows).max(axis=2))


def _patch_key_steps(array: npt.NDArray[Any], one: Constant, k: npt.NDArray[Any]) -> None:
    rows, count = _rows(k, one)
    flat = array.reshape(one.heads, one.rows)
    flat[:, :count] = _key_steps(rows)
    flat[:, count:] = 0


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
