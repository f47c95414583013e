"""The numbers that a page program is built for, and their limits."""

import math
from dataclasses import dataclass

from backburner.errors import ConfigError

VARIANTS = ("block", "softmax", "matmul")
WEIGHTS = ("float16", "int8")

# Longest axis of a Neural Engine tensor up to the A15. It is also what keeps every sum within 2^14, see shift.
MAX_BLOCK_TOKENS = 16_384
# What no page program comes near: a manifest beyond it is damage, which nobody should allocate memory for.
MAX_COLUMNS = 65_536
MAX_CONVOLUTIONS = 4096
MAX_VALUES = 2**29  # of K or of V: 1 GiB, the most that Core ML is said to load on a phone

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
        if any(type(size) is not int for size in sizes) or type(self.estimate) is not bool:
            raise ConfigError(
                f"A page program needs whole numbers, and yes or no for an estimate, not {self}."
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
        if self.columns > MAX_COLUMNS:
            raise ConfigError(f"{self.columns} columns are more than {MAX_COLUMNS}.")
        if self.kv_heads * self.blocks > MAX_CONVOLUTIONS:
            raise ConfigError(
                f"{self.kv_heads} heads in {self.blocks} blocks are more than {MAX_CONVOLUTIONS} convolutions."
            )
        if self.kv_heads * self.page_tokens * self.key_channels > MAX_VALUES:
            raise ConfigError(
                f"A page of {self.page_tokens} positions is more than a Core ML model can hold."
            )
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
