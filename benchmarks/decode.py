"""Decoding at a depth where old keys dominate: alone, and with the older half of the pages held by a worker.

    python benchmarks/decode.py --json

The random hybrid model of benchmarks/models.py; its pages are filled with random K and V instead of being read, which
would take an hour. Host and worker have a core each. Both sequences advance in lockstep, token by token, so that
whatever else the machine does falls on both. `ideal` is what the measured parts allow: the step without old keys, plus
the longer of the host's own keys and the worker's with its round trips. The worker's part is measured while the host
reads its own, so it has in it what both lose by sharing memory; `ideal_apart` has a worker that needs for a key what
the host needs alone, as a device with a memory of its own would (the ideal of benchmarks/prefill.py is of that kind).
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from harness import core_limits, fair_environment, finish, pin, pin_process, usable_cores
from models import write_small

from backburner.attention.engine import AttentionEngine, Geometry
from backburner.attention.select import make_engine
from backburner.engine.request import GenerationRequest
from backburner.engine.runner import ModelRunner, Placement, Sequence
from backburner.engine.worker_link import WorkerLink
from backburner.kv.residency import Residency
from backburner.model.load import load, read_tokenizer
from backburner.transport.messages import Stats
from backburner.worker.loopback import LoopbackWorker

PAGE_TOKENS = 4096


def fill(state: Sequence, pages: dict[int, list[object]], depth: int) -> None:
    """Gives a sequence `depth` old positions: the pages made by `random_pages`, which two sequences may share."""
    state.tokens[:0] = [0] * depth
    state.prompt_tokens = len(state.tokens)
    for number, layer in state.table.layers.items():
        layer.pages[:] = pages[number]
        layer.offset = depth


def random_pages(
    engine: AttentionEngine, geometry: Geometry, layers: tuple[int, ...], depth: int
) -> dict[int, list[object]]:
    generator = np.random.default_rng(0)
    pages: dict[int, list[object]] = {}
    for layer in layers:
        pages[layer] = []
        for _ in range(depth // PAGE_TOKENS):
            page = engine.new_page(geometry)
            shape = (geometry.kv_heads, PAGE_TOKENS, geometry.head_dim)
            engine.append(
                page,
                generator.standard_normal(shape, np.float32),
                generator.standard_normal(shape, np.float32),
            )
            pages[layer].append(page)
    return pages


def step(runner: ModelRunner, state: Sequence) -> tuple[float, np.ndarray]:
    start = time.perf_counter()
    logits = runner.run_token(state)
    elapsed = time.perf_counter() - start
    row = np.array(logits)
    state.tokens.append(int(row.argmax()))
    return elapsed, row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--depth", type=int, default=262_144, help="old positions (a multiple of 8,192)")
    parser.add_argument("--engine", default="auto", help="attention engine of both sides")
    parser.add_argument("--tokens", type=int, default=40, help="tokens timed on each side")
    args = parser.parse_args()
    fair_environment()

    cores = usable_cores()
    pin(cores[0])
    bandwidth, _ = core_limits()
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_small(Path(temporary) / "small")
        loaded = load("small", folder)
        tokenizer = read_tokenizer(folder)
    engine = make_engine(args.engine)
    layers = loaded.model.attention_layers
    geometry = loaded.model.geometry(PAGE_TOKENS)
    depth = args.depth // (2 * PAGE_TOKENS) * 2 * PAGE_TOKENS
    window = depth // 2
    process = LoopbackWorker(geometry.page_bytes * len(layers) * (depth // PAGE_TOKENS))
    connect = process.connector(engine.name)
    worker = WorkerLink(connect, "loopback", engine, geometry, layers, loaded.model.fingerprint)
    assert process.pid is not None
    if len(cores) > 1:
        pin_process(process.pid, cores[1])
    assert worker.connection is not None
    link = worker.connection.link
    speed = link.measure()

    # Nothing may stay overdue: all pages before the window have to be held when the first token is timed.
    placement = Placement([worker], Residency(PAGE_TOKENS, window), overdue_pages=0)
    with_worker = ModelRunner(loaded, tokenizer, engine, geometry, 2 * depth, placement)
    alone = ModelRunner(loaded, tokenizer, engine, geometry, 2 * depth)
    request = GenerationRequest("bench", (1,), args.tokens)
    pages = random_pages(engine, geometry, layers, depth)
    shallow, deep, held = alone.start(request), alone.start(request), with_worker.start(request)
    fill(deep, pages, depth)
    fill(held, pages, depth)
    assert held.held is not None
    held.table.name_full_pages(held.tokens)
    held.held.settle(
        held.table, held.prompt_tokens
    )  # offers the pages, waits until they are there, drops them
    wanted = (depth - window) // PAGE_TOKENS
    assert held.table.held == wanted, (held.table.held, wanted)

    times: dict[str, list[float]] = {"base": [], "alone": [], "held": [], "worker": []}
    identical = True
    attended_s = link.exchange(Stats()).attend_seconds
    for i in range(args.tokens + 2):
        base_s, _ = step(alone, shallow)
        alone_s, row_alone = step(alone, deep)
        held_s, row_held = step(with_worker, held)
        before_s, attended_s = attended_s, link.exchange(Stats()).attend_seconds
        identical &= bool(np.array_equal(row_alone, row_held))
        if i >= 2:  # the first ones touch memory for the first time
            times["base"].append(base_s)
            times["alone"].append(alone_s)
            times["held"].append(held_s)
            times["worker"].append(attended_s - before_s)  # all layers
    base_ms, alone_ms, held_ms, worker_ms = (1e3 * statistics.median(seconds) for seconds in times.values())
    keys_ms = alone_ms - base_ms
    local_share = (depth - held.table.held * PAGE_TOKENS) / depth
    links_ms = len(layers) * speed.rtt_us / 1e3
    ideal_ms = base_ms + max(keys_ms * local_share, worker_ms + links_ms)
    apart_ms = base_ms + keys_ms * max(local_share, 1 - local_share)
    with_worker.close()
    process.close()
    finish(
        {
            "depth_tokens": depth,
            "held_tokens": held.table.held * PAGE_TOKENS,
            "engine": engine.name,
            "base_ms": base_ms,
            "alone_ms": alone_ms,
            "held_ms": held_ms,
            "worker_attend_ms": worker_ms,
            "local_attend_ms": keys_ms * local_share,
            "round_trips_ms": links_ms,
            "kv_bytes_per_s": geometry.row_bytes * len(layers) * depth / (keys_ms / 1e3),
            "read_bytes_per_s": bandwidth,
            "speedup": alone_ms / held_ms,
            "ideal": alone_ms / ideal_ms,
            "of_ideal": ideal_ms / held_ms,
            "ideal_apart": alone_ms / apart_ms,
            "identical": identical,
        },
        args.json,
    )


if __name__ == "__main__":
    main()
