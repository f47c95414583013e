"""Our server's engine against stock mlx-lm on the same random weights, both alone on one core.

    python benchmarks/peer.py --json

Each side is a process of its own (ours forwards MLX's BLAS, which the other must not get) and they take turns: a prompt
of 512 tokens to the first token, then 24 more. Greedy in fp32, so the tokens must agree. The limits are a core's: on a
GPU there are none. `stock_compiles`: whether mx.compile was on for stock mlx-lm; ours does without it on CPU.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

PROMPT_TOKENS = 512
NEW_TOKENS = 24
WARM_UP_TOKENS = 40


def prompt(count: int) -> list[int]:
    return [(i * 7919 + 13) % 3072 for i in range(count)]


def ours(folder: Path) -> Iterator[tuple[float, list[int]]]:
    """Yields once for each token: when it was there, and all tokens so far."""
    from answer import answer_tokens

    from backburner.attention.select import make_engine
    from backburner.engine.request import GenerationRequest
    from backburner.engine.runner import ModelRunner
    from backburner.model.load import load, read_tokenizer

    loaded = load("small", folder)
    geometry = loaded.model.geometry(4096)
    runner = ModelRunner(loaded, read_tokenizer(folder), make_engine("auto"), geometry, 65_536, None)
    runner.warm_up()
    while True:
        count = yield 0.0, []
        state = runner.start(GenerationRequest("bench", tuple(prompt(count)), NEW_TOKENS + 1))
        answer = answer_tokens(runner, state, count)
        tokens = [next(answer)]
        yield time.perf_counter(), tokens
        tokens += islice(answer, NEW_TOKENS)
        yield time.perf_counter(), tokens


def stock(folder: Path) -> Iterator[tuple[float, list[int]]]:
    import mlx.core as mx
    from mlx_lm.generate import generate_step, generation_stream
    from mlx_lm.utils import load_model

    model, _ = load_model(folder)
    while True:
        count = yield 0.0, []
        tokens: list[int] = []
        for token, _ in generate_step(mx.array(prompt(count)), model, max_tokens=NEW_TOKENS + 1):
            tokens.append(int(token))
            if len(tokens) == 1:
                yield time.perf_counter(), tokens
        end = time.perf_counter()
        # It has begun one token more than it gives, which would run on this core in the other side's turn.
        mx.synchronize(generation_stream)
        yield end, tokens


def side(name: str, folder: Path) -> None:
    """The child: for each line with a prompt length, one line with what was measured."""
    run: Any = (ours if name == "ours" else stock)(folder)
    for line in sys.stdin:
        next(run)
        start = time.perf_counter()
        first, _ = run.send(int(line))
        end, tokens = next(run)
        print(json.dumps({"prefill_s": first - start, "decode_s": end - first, "tokens": tokens}), flush=True)


class Side:
    def __init__(self, name: str, folder: Path) -> None:
        command = [sys.executable, __file__, "--side", name, "--folder", str(folder)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.run(WARM_UP_TOKENS)

    def run(self, count: int) -> dict[str, Any]:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(f"{count}\n")
        self._child.stdin.flush()
        return dict(json.loads(self._child.stdout.readline()))

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=["ours", "stock"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        side(args.side, args.folder)
        return

    from harness import core_limits, fair_environment, finish, pin, usable_cores
    from models import write_small

    from backburner.model.cpu import runs_on_cpu

    fair_environment()
    pin(usable_cores()[0])
    bandwidth, flops = core_limits()
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_small(Path(temporary) / "small")
        weights = (folder / "model.safetensors").stat().st_size
        sides = {name: Side(name, folder) for name in ("ours", "stock")}
        rounds: dict[str, list[dict[str, Any]]] = {"ours": [], "stock": []}
        for _ in range(args.rounds):
            for name, process in sides.items():
                rounds[name].append(process.run(PROMPT_TOKENS))
        for process in sides.values():
            process.close()
    prefill = {
        n: PROMPT_TOKENS / statistics.median(r["prefill_s"] for r in runs) for n, runs in rounds.items()
    }
    decode = {n: NEW_TOKENS / statistics.median(r["decode_s"] for r in runs) for n, runs in rounds.items()}
    limits = {
        "prefill_limit_tok_s": flops / (2 * weights / 4),
        "decode_limit_tok_s": bandwidth / weights,
        "read_bytes_per_s": bandwidth,
        "gemm_flop_per_s": flops,
    }
    finish(
        {
            "prompt_tokens": PROMPT_TOKENS,
            "new_tokens": NEW_TOKENS,
            "prefill_tok_s": prefill["ours"],
            "prefill_stock_tok_s": prefill["stock"],
            "prefill_ratio": prefill["ours"] / prefill["stock"],
            "decode_tok_s": decode["ours"],
            "decode_stock_tok_s": decode["stock"],
            "decode_ratio": decode["ours"] / decode["stock"],
            "stock_compiles": "MLX_DISABLE_COMPILE" not in os.environ,
            "identical": all(a["tokens"] == b["tokens"] for a, b in zip(*rounds.values(), strict=True)),
        }
        | (limits if runs_on_cpu() else {}),
        args.json,
    )


if __name__ == "__main__":
    main()
