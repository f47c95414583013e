"""Reading a prompt alone and with a worker that runs the layers after a seam, a core each.

    python benchmarks/prefill.py --json

The random 16-layer model of benchmarks/models.py in ubatches of 256; the worker is a real `backburner worker --model`
process. Both sides read the same prompt in turns, each round another one, so that nothing is kept from an earlier
round. Medians. `identical` compares the first token and all logits, bit for bit. `ideal` is computed for each part
from the times that this host needed alone for the same ubatches (`reads.pipelined_s` has the formula): no link, and a
worker that is exactly as fast as the host, or `--slowdown` times slower. Parts:

  half    the prompt at L = N/2
  slow    the same with a worker slowed down to 0.69x and the seam chosen from measured speeds
  depth   a second, shorter read of a kept conversation, whose first part the worker's mirror has
  past    a prompt four times the window: tail layers, held pages and halves at once; and the window's edge (`step`)
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import fair_environment, finish, pin
from models import SMALL, write_small
from reads import Host, Model, Reading, fit_growth, pipelined_s, prompt, read, usable_cores_at_start

from backburner.attention.select import make_engine
from backburner.config import PAGE_TOKENS, SPLIT_MIN_TOKENS, WINDOW_TOKENS, parse_split_layer
from backburner.engine.scheduler import UBATCH_TOKENS
from backburner.kv.residency import Residency
from backburner.model.load import TINY, load, read_tokenizer

# llama.cpp rpc (ggml 0.25.3), the same shape, 4,096 tokens, half of the layers on each of two cores (docs/evidence.md).
PEER = {
    "peer": "llama.cpp rpc, measured on another machine (2 vCPUs of a Zen 4), not in this run",
    "peer_tok_s": 291,
    "peer_speedup": 1.81,
}

PARTS = ("half", "slow", "depth", "past")


def steps_of(alone: Sequence[Reading]) -> list[float]:
    """Median seconds of each of the host's ubatches."""
    return [statistics.median(times) for times in zip(*(r.steps_s() for r in alone), strict=True)]


def ideal_speedup(
    alone: Sequence[Reading],
    layers: int,
    seam: int,
    slowdown: float = 1.0,
    residency: Residency | None = None,
) -> float:
    """`residency`: also old pages are held, and what the host alone spends on their keys moves to the worker."""
    steps = steps_of(alone)
    first = alone[0].first
    _, per_key = fit_growth(alone[0], steps)
    starts = [first, *alone[0].stops[:-1]]
    held = [residency.held_target(s) * residency.page_tokens if residency else 0 for s in starts]
    old = [per_key * tokens for tokens in held]  # all layers
    head, tail = seam / layers, (layers - seam) / layers
    # Of the last ubatch nothing overlaps but its old keys with its own newer ones.
    newer = per_key * (alone[0].stops[-1] - held[-1])
    last = steps[-1] - min(old[-1], newer)
    split_s = pipelined_s(
        [head * (s - o) for s, o in zip(steps[:-1], old[:-1], strict=True)] + [head * last],
        [tail * s * slowdown for s in steps[:-1]],
        tail * last,
        layers - seam,
        [head * o * slowdown for o in old[:-1]] + [0.0],
    )
    return float(sum(steps) / split_s)


def steady_speedup(
    alone: Sequence[Reading], layers: int, seam: int, residency: Residency, start: int, stop: int
) -> float:
    """In the middle of a read, where neither filling nor end counts: the slower side sets the pace."""
    steps = steps_of(alone)
    _, per_key = fit_growth(alone[0], steps)
    alone_s = split_s = 0.0
    for end, step in zip(alone[0].stops, steps, strict=True):
        begin = end - UBATCH_TOKENS
        if start <= begin and end <= stop:
            old = per_key * residency.held_target(begin) * residency.page_tokens
            head, tail = seam / layers, (layers - seam) / layers
            alone_s += step
            split_s += max(head * (step - old), tail * step + head * old)
    return alone_s / split_s if split_s else 1.0


def best_ideal(alone: Sequence[Reading], model: Model, **more: Any) -> tuple[int, float]:
    """Over all seams at cycle boundaries."""
    seams = range(model.cycle, model.layers, model.cycle)
    return max(
        ((seam, ideal_speedup(alone, model.layers, seam, **more)) for seam in seams), key=lambda x: x[1]
    )


def compare(
    one: Host, other: Host, prompts: Sequence[Sequence[int]], uncounted: int = 0
) -> tuple[list[Reading], list[Reading]]:
    """Both read each prompt in turn; the first ones may be for warming up."""
    pairs = [(read(one.runner, p), read(other.runner, p)) for p in prompts][uncounted:]
    return [a for a, _ in pairs], [b for _, b in pairs]


def summary(
    name: str, alone: Sequence[Reading], split: Sequence[Reading], model: Model, **more: Any
) -> dict[str, Any]:
    alone_s, split_s = (statistics.median(r.seconds for r in side) for side in (alone, split))
    seams = [r.seam for r in split]
    row: dict[str, Any] = {
        "tokens": alone[0].tokens,
        "seam": seams[-1],
        "tok_s_alone": alone[0].tokens / alone_s,
        "tok_s": alone[0].tokens / split_s,
        "speedup": alone_s / split_s,
        "speedups": [round(a.seconds / b.seconds, 3) for a, b in zip(alone, split, strict=True)],
        "identical": all(a.same_as(b) for a, b in zip(alone, split, strict=True)),
    }
    if len(set(seams)) > 1:
        row["seams"] = seams
    if seams[-1] is not None:
        row["ideal"] = ideal_speedup(alone, model.layers, seams[-1], **more)
        row["of_ideal"] = row["speedup"] / row["ideal"]
    row["best_seam"], row["best_seam_ideal"] = best_ideal(alone, model, **more)
    print(f"-- {name}")
    finish(row, False)
    return row


def half(model: Model, args: argparse.Namespace) -> dict[str, Any]:
    page, size = min(PAGE_TOKENS, args.tokens), args.tokens + 1
    prompts = [prompt(args.tokens, n) for n in range(args.rounds + 1)]
    with (
        Host(model, page, size) as one,
        Host(model, page, size).with_worker(
            WINDOW_TOKENS, args.seam, split_tokens_min=args.split_min_tokens
        ) as other,
    ):
        return summary("half", *compare(one, other, prompts, 1), model)


def slow(model: Model, args: argparse.Namespace) -> dict[str, Any]:
    page, size = min(PAGE_TOKENS, args.tokens), args.tokens + 1
    prompts = [prompt(args.tokens, n) for n in range(args.rounds + 1)]
    with (
        Host(model, page, size) as one,
        Host(model, page, size).with_worker(WINDOW_TOKENS, None, args.slowdown) as other,
    ):
        row = summary("slow", *compare(one, other, prompts, 1), model, slowdown=args.slowdown)
        return row | {"slowdown": args.slowdown}


def depth(model: Model, args: argparse.Namespace) -> dict[str, Any]:
    """Each round goes back to where the first read ended, which is a whole ubatch's end, and reads something new."""
    page, deep = min(PAGE_TOKENS, args.tokens), 2 * args.tokens
    more = max(args.tokens // 2, SPLIT_MIN_TOKENS + UBATCH_TOKENS)
    size = deep + more + 1
    before = prompt(deep)
    # One token more than whole ubatches, so that the checkpoint, which is where the last ubatch begins, is at `deep`.
    first = [*before, 1]
    prompts = [before + prompt(more, n + 1) for n in range(args.rounds)]
    with (
        Host(model, page, size, sessions=1) as one,
        Host(model, page, size, sessions=1).with_worker(WINDOW_TOKENS, args.seam) as other,
    ):
        alone, split = compare(one, other, [first, *prompts], 1)
        assert all(r.first == deep for r in (*alone, *split)), "the conversation was not kept"
        return summary("depth", alone, split, model) | {"depth": deep}


def past(model: Model, args: argparse.Namespace) -> dict[str, Any]:
    window, length = args.tokens // 2, 2 * args.tokens
    page, size = window // 4, length + 1
    seam = args.seam if args.past_seam is None else parse_split_layer(args.past_seam)
    prompts = [prompt(length, n) for n in range(args.rounds)]
    residency = Residency(page, window)
    with tempfile.TemporaryDirectory() as spill:
        with (
            Host(model, page, size) as one,
            Host(model, page, size).with_worker(window, seam, spill_folder=Path(spill)) as other,
        ):
            compare(one, other, [prompt(2 * SPLIT_MIN_TOKENS, len(prompts))])
            alone, split = compare(one, other, prompts)
        row = summary("past", alone, split, model, residency=residency)
    # The window's edge: as many tokens before it as after the first pages have left.
    slices = {"before": (window // 2, window), "after": (window + 2 * page, window * 3 // 2 + 2 * page)}
    slices["end"] = (length - window, length - UBATCH_TOKENS)
    rates = {
        (side, name): statistics.median(r.tok_s(*edges) for r in readings)
        for side, readings in (("alone", alone), ("split", split))
        for name, edges in slices.items()
    }
    across = {f"tok_s_{name}_{side}": rate for (side, name), rate in rates.items()}
    for name in ("after", "end"):
        # What host alone loses over the same slices is attention's growth, not the window's doing.
        growth = rates["alone", name] / rates["alone", "before"]
        kept = rates["split", name] / rates["split", "before"]
        across["step" if name == "after" else "step_to_the_end"] = 1 - kept / growth
    ran = split[-1].seam
    if ran is not None:
        # The worker has more to do past the window. With this seam, so much of a step is in the work itself.
        before, after = (
            steady_speedup(alone, model.layers, ran, residency, *slices[name]) for name in ("before", "after")
        )
        across["step_ideal"] = 1 - after / before
    finish(across, False)
    return (
        row
        | across
        | {"window": window, "page_tokens": page, "held_tokens": split[-1].held_tokens, "slices": slices}
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=3, help="of each side in each part")
    parser.add_argument(
        "--tokens", type=int, default=4096, help="prompt of half and slow; the other parts scale with it"
    )
    parser.add_argument("--layers", type=int, default=16, help="of the random model, in whole cycles of 4")
    parser.add_argument("--small", action="store_true", help="the embedded tiny model, to try the script")
    parser.add_argument("--seam", type=int, help="instead of half of the layers (not in slow)")
    parser.add_argument("--past-seam", help="in past instead: auto or L")
    parser.add_argument("--slowdown", type=float, default=1.45, help="of the worker in slow; 1.45 is 0.69x")
    parser.add_argument(
        "--split-min-tokens",
        type=int,
        default=SPLIT_MIN_TOKENS,
        help="in half: shorter prompts are not split",
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    args = parser.parse_args()
    if args.tokens < 2 * (SPLIT_MIN_TOKENS + UBATCH_TOKENS) and "past" in args.parts:
        parser.error(f"--tokens {args.tokens}: past needs at least {2 * (SPLIT_MIN_TOKENS + UBATCH_TOKENS)}")
    fair_environment()

    pin(usable_cores_at_start()[0])
    engine = make_engine("auto")
    with tempfile.TemporaryDirectory() as temporary:
        if args.small:
            folder = TINY
        else:
            folder = write_small(Path(temporary) / "small", SMALL | {"num_hidden_layers": args.layers})
        model = Model(load("bench", folder), read_tokenizer(folder), engine, folder)
        args.seam = args.seam or model.layers // 2
        runs = {"half": half, "slow": slow, "depth": depth, "past": past}
        rows = {name: runs[name](model, args) for name in PARTS if name in args.parts}
    result: dict[str, Any] = {"layers": model.layers, "ubatch": UBATCH_TOKENS, "engine": engine.name}
    # The first part's figures are at the top, too: the plain case.
    result |= rows.get("half", {})
    result["identical"] = all(row["identical"] for row in rows.values())
    print("-- all")
    finish(result | PEER, False)
    if args.json:
        print(json.dumps(result | PEER | {"rows": rows}))


if __name__ == "__main__":
    main()
