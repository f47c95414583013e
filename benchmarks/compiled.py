"""What mx.compile is worth on CPU: tokens and ubatches with it and without, in turn.

    python benchmarks/compiled.py --json

The random hybrid model of benchmarks/models.py. Two sequences advance in lockstep, one with compiled functions and one
without, so that whatever else the machine does falls on both; the ratios are of medians, above 1 where compiling pays.
The first steps of each are not counted: functions are compiled in them. The server does without it on CPU, where it
needs a C++ compiler at run time.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from harness import fair_environment, finish, pin, usable_cores
from models import write_small

from backburner.attention.select import make_engine
from backburner.engine.request import GenerationRequest
from backburner.engine.runner import ModelRunner, Sequence
from backburner.engine.scheduler import UBATCH_TOKENS
from backburner.model.load import load, read_tokenizer

# Below, because backburner.model has to be imported before MLX: else its products run on the reference BLAS.
import mlx.core as mx  # isort: skip

NOT_COUNTED = 2


def token(runner: ModelRunner, state: Sequence) -> None:
    row = np.array(runner.run_token(state))
    state.tokens.append(int(row.argmax()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--ubatches", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=60)
    args = parser.parse_args()
    fair_environment()
    pin(usable_cores()[0])
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_small(Path(temporary) / "small")
        loaded = load("small", folder)
        tokenizer = read_tokenizer(folder)
    geometry = loaded.model.geometry(4096)
    length = args.ubatches * UBATCH_TOKENS
    runner = ModelRunner(loaded, tokenizer, make_engine("auto"), geometry, 2 * length + args.tokens)
    prompt = tuple(np.random.default_rng(0).integers(1, 1000, length).tolist())
    modes = {"compiled": mx.enable_compile, "plain": mx.disable_compile}
    states = {mode: runner.start(GenerationRequest(mode, prompt, args.tokens)) for mode in modes}

    def timed(kind: str, step: Callable[[Sequence, int], None]) -> dict[str, float]:
        times: dict[str, list[float]] = {mode: [] for mode in modes}
        for i in range(args.ubatches if kind == "read" else args.tokens):
            for mode, switch in modes.items():
                switch()
                begun = time.perf_counter()
                step(states[mode], i)
                times[mode].append(time.perf_counter() - begun)
        return {mode: 1e3 * statistics.median(ms[NOT_COUNTED:]) for mode, ms in times.items()}

    def read(state: Sequence, i: int) -> None:
        logits = runner.read(state, i * UBATCH_TOKENS, (i + 1) * UBATCH_TOKENS)
        if logits is not None:
            state.tokens.append(int(np.array(logits).argmax()))

    ubatch_ms = timed("read", read)
    token_ms = timed("decode", lambda state, _: token(runner, state))
    finish(
        {
            "ubatch_compiled_ms": ubatch_ms["compiled"],
            "ubatch_plain_ms": ubatch_ms["plain"],
            "read_gain": ubatch_ms["plain"] / ubatch_ms["compiled"],
            "token_compiled_ms": token_ms["compiled"],
            "token_plain_ms": token_ms["plain"],
            "decode_gain": token_ms["plain"] / token_ms["compiled"],
        },
        args.json,
    )


if __name__ == "__main__":
    main()
