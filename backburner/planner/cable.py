"""What a cable's speed costs a split read: the seam's arithmetic, for the pair of devices that was measured."""

from dataclasses import dataclass

from backburner.planner.seam import Speeds, best_seam, gain, step_us

# What arrives of a cable's bits, by how fast it says that it is: 6.3 MB in 26 ms on 10 Gb/s, half of that on 5 Gb/s,
# and 1 MB in 28 ms on USB 2 (facts of the first Backburner). Nobody has measured 20 Gb/s: not more than 10 is promised.
USABLE_BYTES_PER_S = {480e6: 35e6, 5e9: 122e6, 10e9: 244e6, 20e9: 244e6}

UBATCH_TOKENS = 256
CYCLE = 4


@dataclass(frozen=True, slots=True)
class Pair:
    """A host, a worker and a model, as the cost model has fitted them."""

    name: str
    layers: int
    host_token_us: float  # all layers, nothing read before
    host_key_us: float  # more of it for each position read before
    worker_rate: float  # of the host's, in what is linear
    worker_key_rate: float  # ... and in attention
    residual_bytes: int  # of a token, at the seam
    row_bytes: int  # K and V of a token, all layers
    state_bytes: int  # recurrent states, all layers

    def speeds(self, depth: int, bytes_per_s: float) -> Speeds:
        """One ubatch after `depth` positions, over a link this fast."""
        linear, keys = self.host_token_us, self.host_key_us * depth
        a_layer = UBATCH_TOKENS / self.layers
        return Speeds(
            self.layers,
            (linear + keys) * a_layer,
            (linear / self.worker_rate + keys / self.worker_key_rate) * a_layer,
            UBATCH_TOKENS * (self.residual_bytes + self.row_bytes) / bytes_per_s * 1e6,
        )


# 27B in 4 bits: 5,120 wide in bfloat16; 16 attention layers of 4,096 bytes a token; 48 recurrent states of 3.1 MB.
PAIR = Pair(
    "M4 Pro and iPhone 17 Pro Max, 27B model", 64, 7940.0, 0.0708, 0.69, 0.337, 10_240, 65_536, 151_000_000
)


def usable_bytes_per_s(bits_per_s: float) -> float:
    """What a link of this nominal speed carries; below USB 2 in proportion to it."""
    return USABLE_BYTES_PER_S.get(bits_per_s) or bits_per_s * USABLE_BYTES_PER_S[480e6] / 480e6


def split_gain(bytes_per_s: float, depth: int = 0, pair: Pair = PAIR) -> float | None:
    """How many times as fast as the host alone a long read is; None when splitting does not pay."""
    speeds = pair.speeds(depth, bytes_per_s)
    seam = best_seam(speeds, CYCLE)
    return None if seam is None else gain(seam, speeds)


def read_s(tokens: int, bytes_per_s: float, depth: int = 0, pair: Pair = PAIR) -> float:
    """How long a read takes: filling the pipeline, its steady state, and the worker's states coming back at the end.

    The host reads the last ubatch alone, each layer as soon as its state is there.
    """
    speeds = pair.speeds(depth, bytes_per_s)
    ubatches = -(-tokens // UBATCH_TOKENS)
    seam = best_seam(speeds, CYCLE)
    if seam is None or ubatches < 3:
        return ubatches * speeds.layers * speeds.host_layer_us / 1e6
    tail = speeds.layers - seam
    fill_us = seam * speeds.host_layer_us + speeds.link_us + tail * speeds.worker_layer_us
    states_us = pair.state_bytes * tail / speeds.layers / bytes_per_s * 1e6
    last_us = max(states_us, tail * speeds.host_layer_us)
    return (fill_us + (ubatches - 2) * step_us(seam, speeds) + last_us) / 1e6


def longer(tokens: int, bytes_per_s: float, depth: int = 0, pair: Pair = PAIR) -> float:
    """How much longer a read takes than over a 10 Gb/s cable: 0.07 is 7 %."""
    best = USABLE_BYTES_PER_S[10e9]
    return max(0.0, read_s(tokens, bytes_per_s, depth, pair) / read_s(tokens, best, depth, pair) - 1)


def page_s(bytes_per_s: float, page_tokens: int = 4_096, pair: Pair = PAIR) -> float:
    """How long a page of all layers takes to cross."""
    return pair.row_bytes * page_tokens / bytes_per_s


def cost_of(bits_per_s: float) -> str:
    """One sentence about what a cable of this speed costs."""
    carries = usable_bytes_per_s(bits_per_s)
    text = f"about {carries / 1e6:,.0f} MB/s" if carries >= 2e6 else f"about {carries / 1e6:,.1f} MB/s"
    if split_gain(carries) is None:
        return f"{text}: too slow for a split read to pay ({PAIR.name})"
    short, long = (longer(tokens, carries) for tokens in (2_048, 16_384))
    if short < 0.005:
        return f"{text}: no slower than 10 Gb/s for a split read ({PAIR.name})"
    return (
        f"{text}: a split read of 2,048 tokens takes {short:.0%} longer than on 10 Gb/s, of 16,384 {long:.0%}; "
        f"a page takes {page_s(carries):.1f} s to move, not {page_s(USABLE_BYTES_PER_S[10e9]):.1f} ({PAIR.name})"
    )
