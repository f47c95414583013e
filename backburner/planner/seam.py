"""Where to cut the layers between host and worker in a split read."""

from dataclasses import dataclass

# Two seams whose predicted speeds differ by less count as equal, and the larger one is taken: errors are asymmetric.
# At 32k tokens L = 36 / 40 / 44 / 48 gave 124 / 145 / 142 / 130 tok/s, and with a hot phone 90 / 105 / 126 / 130
# (facts of the first Backburner).
TIE = 0.04

# A seam that is in use stays until another promises this much: moving it means that the worker reads layers from disk
# and gets the rows of layers that it did not have.
HYSTERESIS = 0.10

# Less gain than this is not worth a second machine's power and heat.
GAIN_MIN = 1.03


@dataclass(frozen=True, slots=True)
class Speeds:
    """Measured: what one ubatch costs."""

    layers: int  # N of the model
    host_layer_us: float  # one layer on the host
    worker_layer_us: float  # one layer on the worker
    link_us: float  # residual out and rows back, for one ubatch


def step_us(seam: int, s: Speeds) -> float:
    """Microseconds of a ubatch in the steady pipeline: the slowest of head, tail and link."""
    return max(seam * s.host_layer_us, (s.layers - seam) * s.worker_layer_us, s.link_us)


def gain(seam: int, s: Speeds) -> float:
    """How many times as fast as the host alone the steady pipeline is."""
    return s.layers * s.host_layer_us / step_us(seam, s)


def why_not(s: Speeds, cycle: int) -> str:
    """The numbers with which `best_seam` gave None."""
    ideal = s.layers * s.worker_layer_us / (s.host_layer_us + s.worker_layer_us)
    below = int(ideal // cycle) * cycle
    seams = [seam for seam in (below, below + cycle) if 0 < seam < s.layers]
    text = (
        f"for one ubatch a layer takes {s.host_layer_us / 1e3:,.2f} ms here and "
        f"{s.worker_layer_us / 1e3:,.2f} ms on the worker, their bytes {s.link_us / 1e3:,.2f} ms on the link"
    )
    if not seams:
        return f"{text}; no seam leaves layers to both sides"
    best = min(seams, key=lambda seam: step_us(seam, s))
    return f"{text}; split at layer {best} of {s.layers}, reading would be {gain(best, s):.2f} times as fast"


def best_seam(s: Speeds, cycle: int, current: int | None = None) -> int | None:
    """The seam to split at, a multiple of `cycle`; None when splitting does not pay.

    L* = N w / (h + w) balances head and tail (h, w: time of a layer on host and worker); of the two seams around it
    the faster is taken, on a tie the larger. `current` is the seam in use, which is kept unless another is clearly
    better.
    """
    alone = s.layers * s.host_layer_us
    ideal = s.layers * s.worker_layer_us / (s.host_layer_us + s.worker_layer_us)
    below = int(ideal // cycle) * cycle
    seams = [seam for seam in (below, below + cycle) if 0 < seam < s.layers]
    if not seams:
        return None
    fastest = min(step_us(seam, s) for seam in seams)
    best = max(seam for seam in seams if step_us(seam, s) <= fastest * (1 + TIE))
    if current is not None and 0 < current < s.layers and step_us(current, s) <= fastest * (1 + HYSTERESIS):
        best = current
    return best if alone >= step_us(best, s) * GAIN_MIN else None
