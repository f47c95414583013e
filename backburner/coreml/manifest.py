"""What a page template is: its shape, and where in weight.bin each constant lies. Swift reads the same JSON."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from backburner.errors import ConfigError

TEMPLATE_VERSION = 1
VARIANTS = ("block", "softmax", "matmul")
WEIGHTS = ("float16", "int8")
ITEM_BYTES = {"float16": 2, "int8": 1}

# Longest axis of a Neural Engine tensor up to the A15. It is also what keeps every sum within 2^14, see shift.
MAX_BLOCK_TOKENS = 16_384
# Added to the score of a row that does not exist. With |score| < 2,700 the sum stays above -2^15, where an M1's
# multiply-accumulate unit gives infinity.
MASK_VALUE = -30_000.0
# Weights of the row sum, and the bound of the scaled V: with weights of at most 2^4 and 16,384 rows sums stay
# within 2^14.
SUM_LOG2 = -4
# Taken off the largest score, so that weights are at most e^shift: the larger, the smaller the weights that fp16 still
# holds; but the largest weight's exponent is this number, rounded to fp16, whose step doubles at 2. On 1,024 rows, the
# worst error of lse and, where denormals are flushed, of o: 1.4e-3 and 0.7 % at 2.77, 1.3e-3 and 0.7 % at 1.39, 0.9e-3
# and 2.5 % at 0.
SHIFT = 1.9375


@dataclass(frozen=True, slots=True)
class PageShape:
    """The numbers that a page program is built for."""

    q_heads: int
    kv_heads: int
    head_dim: int
    page_tokens: int
    block_tokens: int  # rows of K in one convolution
    columns: int  # query heads of one kv head x tokens, padded to what the device likes (multiples of 32)
    variant: str = "block"
    estimate: bool = True  # one more input channel that takes an estimated maximum off every score
    weights: str = "float16"
    shift: float = SHIFT  # softmax weights are at most e^shift

    def __post_init__(self) -> None:
        sizes = (
            self.q_heads,
            self.kv_heads,
            self.head_dim,
            self.page_tokens,
            self.block_tokens,
            self.columns,
        )
        if min(sizes) < 1:
            raise ConfigError(f"A page program needs positive sizes, not {sizes}.")
        if self.q_heads % self.kv_heads:
            raise ConfigError(f"{self.q_heads} query heads cannot share {self.kv_heads} kv heads evenly.")
        if self.page_tokens % self.block_tokens:
            raise ConfigError(
                f"A page of {self.page_tokens} positions is not a multiple of blocks of {self.block_tokens}."
            )
        # Shorter constants are written into the spec rather than weight.bin, where nobody could patch them.
        if self.head_dim < 16 or self.block_tokens < 16:
            raise ConfigError("A page program needs a head_dim and blocks of at least 16.")
        if self.block_tokens > MAX_BLOCK_TOKENS:
            raise ConfigError(f"Blocks of {self.block_tokens} are longer than {MAX_BLOCK_TOKENS}.")
        if self.columns < self.group:
            raise ConfigError(f"{self.columns} columns do not hold one token's {self.group} query heads.")
        if self.variant not in VARIANTS:
            raise ConfigError(f"Variant {self.variant!r} is not one of {', '.join(VARIANTS)}.")
        if self.weights not in WEIGHTS:
            raise ConfigError(f"Weights {self.weights!r} are not one of {', '.join(WEIGHTS)}.")
        if self.variant != "block" and self.block_tokens != self.page_tokens:
            raise ConfigError(
                f"Variant {self.variant} has one block: block_tokens must be {self.page_tokens}."
            )
        if self.weights == "int8" and (self.estimate or self.variant != "block"):
            raise ConfigError("int8 weights exist for the block variant without an estimate channel only.")
        if not 0 <= self.shift <= 8 or self.page_tokens * math.exp(self.shift) * 2.0**SUM_LOG2 > 2**14:
            raise ConfigError(f"A shift of {self.shift} lets sums over {self.page_tokens} rows exceed 2^14.")

    @property
    def group(self) -> int:
        """Query heads that share a kv head."""
        return self.q_heads // self.kv_heads

    @property
    def query_tokens(self) -> int:
        """The most tokens of one call."""
        return self.columns // self.group

    @property
    def key_channels(self) -> int:
        return self.head_dim + int(self.estimate)

    @property
    def blocks(self) -> int:
        return self.page_tokens // self.block_tokens


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


@dataclass(frozen=True, slots=True)
class SelfTest:
    """A page and queries made from a seed, and the file with what attention over them must give."""

    seed: int
    filled: int
    tokens: int
    scale: float  # of the softmax
    o_rel_max: float
    lse_abs_max: float
    file: str  # o [q_heads][token][head_dim], then lse [q_heads][token], little-endian float32
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that is needed to make weight.bin of a page, to ask the program, and to read its answer."""

    template_version: int
    shape: PageShape
    minimum_os: str
    spec_sha256: str
    file_bytes: int  # of weight.bin
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    constants: tuple[Constant, ...]
    mask_value: float
    sum_log2: int  # lse = mc + ln (l, summed over blocks) - sum_log2 ln 2 + estimate
    o_log2: int  # o = output 2^(exponent + o_log2)
    self_test: SelfTest | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


def from_json(text: str) -> Manifest:
    """Raises ConfigError for anything but a manifest of this version."""
    try:
        value: dict[str, Any] = json.loads(text)
        if value["template_version"] != TEMPLATE_VERSION:
            raise ConfigError(
                f"The template has version {value['template_version']}, this Backburner reads {TEMPLATE_VERSION}: "
                "make it again with `backburner bake template`."
            )
        fields = dict(value)
        fields["shape"] = PageShape(**value["shape"])
        for name in ("inputs", "outputs"):
            fields[name] = tuple(Port(port["name"], tuple(port["shape"])) for port in value[name])
        fields["constants"] = tuple(
            Constant(**{**one, "shape": tuple(one["shape"])}) for one in value["constants"]
        )
        if value["self_test"] is not None:
            fields["self_test"] = SelfTest(**value["self_test"])
        manifest = Manifest(**fields)
    except (ValueError, KeyError, TypeError) as e:
        raise ConfigError(f"This is not a page template's manifest: {e!r}") from None
    _check_ranges(manifest)
    return manifest


def read_manifest(path: Path) -> Manifest:
    try:
        return from_json(path.read_text())
    except OSError as e:
        raise ConfigError(f"No page template at {path.parent}: {e}") from None


def _check_ranges(manifest: Manifest) -> None:
    """A patcher writes only inside its file and never over a neighbour."""
    end = 64
    for constant in sorted(manifest.constants, key=lambda one: one.metadata_offset):
        items = 1
        for size in constant.shape:
            items *= size
        fits = (
            constant.dtype in ITEM_BYTES
            and constant.metadata_offset >= end
            and constant.metadata_offset % 64 == 0
            and constant.data_offset == constant.metadata_offset + 64
            and constant.bytes == items * ITEM_BYTES[constant.dtype]
        )
        if not fits:
            raise ConfigError(f"The manifest's constant {constant.name} has an impossible place or size.")
        end = constant.data_offset + constant.bytes
    if end > manifest.file_bytes:
        raise ConfigError(
            f"The manifest's constants end at {end}, beyond its file of {manifest.file_bytes} bytes."
        )
