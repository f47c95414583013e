"""What a page program of a shape has: its constants in weight.bin, its inputs and its outputs. No file is read here."""

import math
from dataclasses import dataclass, replace

from backburner.coreml.shape import PageShape

ALIGNMENT = 64
RECORD_BYTES = 64  # the metadata before each constant, and the header of the file
ITEM_BYTES = {"float16": 2, "int8": 1}


@dataclass(frozen=True, slots=True)
class Constant:
    """One patched array of weight.bin: `rows` rows of `heads` kv heads, in the order that `role` says.

    k        [heads][row][channel]; with an estimate the last channel is 1
    v        [heads][channel][row], scaled by 2^-exponent
    mask     [row]: 0, or the mask value where there is no row
    ones     [row]: 2^SUM_LOG2, always
    k_scale  [heads][row], v_scale [heads][channel]: with int8 weights, what the integers of k and v count in
    """

    name: str
    role: str
    first_head: int
    heads: int
    first_row: int
    rows: int
    dtype: str
    shape: tuple[int, ...]
    metadata_offset: int
    data_offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output array, float16."""

    name: str
    shape: tuple[int, ...]


def aligned(offset: int) -> int:
    return (offset + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def placed(constant: Constant, end: int) -> Constant:
    """The constant as it lies in a file whose last one ends at `end`."""
    offset = aligned(end)
    return replace(constant, metadata_offset=offset, data_offset=offset + RECORD_BYTES)


def constants_of(shape: PageShape) -> dict[str, Constant]:
    """Every constant that lies in weight.bin, by name, not yet placed: coremltools chooses their order."""
    rows, channels, dim = shape.block_tokens, shape.key_channels, shape.head_dim
    constants: dict[str, Constant] = {}

    def add(name: str, role: str, first_head: int, heads: int, first_row: int, *size: int) -> None:
        dtype = "int8" if role in ("k", "v") and shape.weights == "int8" else "float16"
        count = math.prod(size) * ITEM_BYTES[dtype]
        constants[name] = Constant(name, role, first_head, heads, first_row, rows, dtype, size, 0, 0, count)

    if shape.variant == "matmul":
        add("k", "k", 0, shape.kv_heads, 0, 1, shape.kv_heads, rows, channels)
        add("v", "v", 0, shape.kv_heads, 0, 1, shape.kv_heads, dim, rows)
        add("mask", "mask", 0, 0, 0, 1, 1, 1, rows)
        add("ones", "ones", 0, 0, 0, 1, 1, 1, rows)
        return constants
    for block in range(shape.blocks):
        first = block * rows
        for head in range(shape.kv_heads):
            at = f"{head}_{block}"
            if shape.weights == "int8":
                add(f"k_{at}/data", "k", head, 1, first, rows, channels, 1, 1)
                add(f"k_{at}/scale", "k_scale", head, 1, first, rows, 1, 1, 1)
                add(f"v_{at}/data", "v", head, 1, first, dim, rows, 1, 1)
                add(f"v_{at}/scale", "v_scale", head, 1, first, dim, 1, 1, 1)
            else:
                add(f"k_{at}", "k", head, 1, first, rows, channels, 1, 1)
                add(f"v_{at}", "v", head, 1, first, dim, rows, 1, 1)
        add(f"mask_{block}", "mask", 0, 0, first, rows)
    if shape.variant == "block":
        add("ones", "ones", 0, 0, 0, 1, rows, 1, 1)
    return constants


def _port(shape: PageShape, name: str, channels: int) -> Port:
    if shape.variant == "matmul":
        return Port(name, (1, shape.kv_heads, shape.columns, channels))
    return Port(name, (1, shape.kv_heads * channels, 1, shape.columns))


def inputs_of(shape: PageShape) -> tuple[Port, ...]:
    return (_port(shape, "q", shape.key_channels),)


def outputs_of(shape: PageShape) -> tuple[Port, ...]:
    return (
        _port(shape, "o", shape.head_dim),
        _port(shape, "mc", 1),
        _port(shape, "l", shape.blocks),
    )
