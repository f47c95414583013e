"""One conversation that grows: reading speed, decoding speed and the host's memory at each depth, with a worker.

    python benchmarks/depth.py --json

The embedded model; a real `backburner worker --model` process on the other core, a window of 4,096 tokens in pages of
512, a spill in a temporary folder. The conversation grows in turns of at most `--turn-tokens`, of which each reads what
is new; at each depth `tok_s` is of the last turn, and then some tokens are decoded. `rss_mib` is the resident memory of
the host's process after that, `peak_mib` the most that was seen between two steps since the depth before. Past the
window old pages leave, so it should stop growing there: `memory_growth_past_window_mib` is its growth from the first
depth with two windows to the last, and `kv_past_window_mib` what K and V of the positions between take, by which a host
alone grows. The first depths are read by a host alone too, afterwards, which shows that logits and tokens are the same,
bit for bit.

A split read keeps its residuals until it ends, up to engine/tail.py's RESIDUAL_BYTES_MAX (256 MiB). With turns of one
length they count equally at all depths; `--turn-tokens 0` reads from depth to depth at once, and they show. What the
C library and MLX keep of freed memory counts too; `--trim` gives it back first (glibc), and what is left is in use.
"""

import argparse
import ctypes
import gc
import json
import statistics
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
from harness import fair_environment, finish, pin
from reads import Host, Model, Reading, prompt, read, usable_cores_at_start

from backburner.attention.select import make_engine
from backburner.config import parse_split_layer
from backburner.model.load import TINY, load, read_tokenizer

# Below, because backburner.model has to be imported before MLX.
import mlx.core as mx  # isort: skip

LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
MIB = 2**20


class Memory:
    """Of this process; a worker has its own."""

    def __init__(self, trim: bool) -> None:
        self._process = psutil.Process()
        self._trim = ctypes.CDLL("libc.so.6").malloc_trim if trim else None
        self.peak = 0

    def settle(self) -> int:
        """What is resident when nothing runs."""
        gc.collect()
        if self._trim is not None:
            mx.clear_cache()
            self._trim(0)
        return self.now()

    def now(self) -> int:
        return int(self._process.memory_info().rss)

    def look(self) -> None:
        self.peak = max(self.peak, self.now())


def grow(
    host: Host, lengths: Iterable[int], turn_tokens: int, new_tokens: int, memory: Memory
) -> list[tuple[Reading, dict[str, Any]]]:
    """Reads up to each length, in one kept conversation."""
    found = []
    there = 0
    for length in lengths:
        memory.peak = 0
        for stop in range(there + turn_tokens, length, turn_tokens) if turn_tokens else ():
            read(host.runner, prompt(stop), 1, memory.look)
        there = length
        reading = read(host.runner, prompt(length), new_tokens, memory.look)
        row = {
            "depth": length,
            "tokens": reading.tokens,
            "tok_s": reading.tokens / reading.seconds,
            "decode_ms": 1e3 * statistics.median(reading.decode_s[1:]),
            "rss_mib": memory.settle() / MIB,
            "peak_mib": memory.peak / MIB,
            "held_tokens": reading.held_tokens,
            "seam": reading.seam,
        }
        found.append((reading, row))
        finish(row, False)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS))
    parser.add_argument("--window-tokens", type=int, default=4096)
    parser.add_argument("--page-tokens", type=int, default=512)
    parser.add_argument(
        "--new-tokens", type=int, default=33, help="decoded at each depth; the first is the read's"
    )
    parser.add_argument("--turn-tokens", type=int, default=4096, help="longest read; 0: from depth to depth")
    parser.add_argument("--split-layer", default="auto", help="auto, 0 or L")
    parser.add_argument(
        "--alone-to", type=int, default=8192, help="the last depth that a host alone reads too"
    )
    parser.add_argument("--model", type=Path, default=TINY)
    parser.add_argument("--trim", action="store_true", help="give freed memory back before looking (glibc)")
    args = parser.parse_args()
    lengths = sorted(args.lengths)
    if args.new_tokens < 3:
        parser.error("--new-tokens: at least 3, one of the read and one that is not counted")
    fair_environment()

    pin(usable_cores_at_start()[0])
    model = Model(load("tiny", args.model), read_tokenizer(args.model), make_engine("auto"), args.model)
    page, window, size = args.page_tokens, args.window_tokens, lengths[-1] + args.new_tokens
    memory = Memory(args.trim)
    with tempfile.TemporaryDirectory() as spill:
        worker = Host(model, page, size, sessions=1).with_worker(
            window, parse_split_layer(args.split_layer), spill_folder=Path(spill)
        )
        with worker as host:
            print("-- with a worker")
            held = grow(host, lengths, args.turn_tokens, args.new_tokens, memory)
    with Host(model, page, size, sessions=1) as host:
        print("-- alone")
        alone = grow(
            host,
            [n for n in lengths if n <= args.alone_to],
            args.turn_tokens,
            args.new_tokens,
            memory,
        )

    rows = [row for _, row in held]
    for (reading, row), (other, other_row) in zip(held, alone, strict=False):
        row["identical"] = reading.same_as(other)
        row |= {f"{name}_alone": other_row[name] for name in ("tok_s", "decode_ms")}
    past = [row for row in rows if row["depth"] >= 2 * window]
    layers = model.loaded.model.attention_layers
    token_bytes = model.loaded.model.geometry(page).row_bytes * len(layers)
    result: dict[str, Any] = {"window_tokens": window, "page_tokens": page, "engine": model.engine.name}
    if len(past) > 1:
        result["memory_growth_past_window_mib"] = past[-1]["rss_mib"] - past[0]["rss_mib"]
        result["kv_past_window_mib"] = token_bytes * (past[-1]["depth"] - past[0]["depth"]) / MIB
    result["identical"] = all(row["identical"] for row in rows if "identical" in row) if alone else None
    result["compared"] = len(alone)
    print("-- all")
    finish(result, False)
    if args.json:
        print(json.dumps(result | {"rows": rows}))


if __name__ == "__main__":
    main()
