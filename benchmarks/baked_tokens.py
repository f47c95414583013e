"""tiny's greedy tokens with its old context baked, beside those with plain pages."""

import tempfile
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from answer import answer_tokens

from backburner.attention.select import make_engine
from backburner.coreml.runtime import SimulatedRuntime
from backburner.engine.request import GenerationRequest
from backburner.engine.runner import ModelRunner, Placement
from backburner.engine.worker_link import WorkerLink
from backburner.kv.residency import Residency
from backburner.model.load import TINY, LoadedModel, load, read_tokenizer
from backburner.transport.link import Link
from backburner.transport.tcp import connect, listen
from backburner.worker.bake_share import Share
from backburner.worker.baker import BakeSettings
from backburner.worker.server import WorkerServer

PAGE_TOKENS, WINDOW_TOKENS, BAKED_TOKENS = 64, 128, 256
PATIENCE_S = 600.0


def identical_tokens(filler: int, count: int) -> dict[str, Any]:
    """How many of `count` greedy tokens are the same before the first difference; filler: sentences of 15 tokens."""
    model, tokenizer = load("tiny", TINY), read_tokenizer(TINY)
    notes = "The code of the blue gate is 4821. " + "The boats stayed in the harbour all day. " * filler
    messages = [
        {"role": "system", "content": notes},
        {"role": "user", "content": "What is the code of the blue gate?"},
    ]
    prompt = list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, enable_thinking=False))
    expected = _generate(_runner(model, tokenizer, None), prompt, count, lambda: None)
    with tempfile.TemporaryDirectory() as folder:
        settings = BakeSettings(
            SimulatedRuntime(), Share(1.0, 1.0), BAKED_TOKENS, folder=Path(folder), folder_bytes=2**32
        )
        server = WorkerServer(
            listen("127.0.0.1", 0), make_engine("baked-sim"), 2**31, "kitchen", ("baked-sim",), bake=settings
        )
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = int(server.address.rpartition(":")[2])
        runner = _runner(model, tokenizer, lambda: Link(connect("127.0.0.1", port)))
        bakery = server.bakery
        assert bakery is not None
        held = (len(prompt) - WINDOW_TOKENS) // PAGE_TOKENS * PAGE_TOKENS
        # The page that has just become old moves with the next step only.
        wanted = (held - PAGE_TOKENS) // BAKED_TOKENS * len(model.model.attention_layers)

        def wait() -> None:
            end = time.monotonic() + PATIENCE_S
            while bakery.state().pages < wanted and not bakery.state().error and time.monotonic() < end:
                time.sleep(0.05)

        found = _generate(runner, prompt, count, wait)
        state = bakery.state()
        server.close()
    same = next((i for i, (a, b) in enumerate(zip(expected, found, strict=True)) if a != b), count)
    return {
        "prompt_tokens": len(prompt),
        "tokens": count,
        "identical": same,
        "baked_pages": state.pages,
        "served_share": state.share,
        "error": state.error,
    }


def _runner(model: LoadedModel, tokenizer: Any, reach: Callable[[], Link] | None) -> ModelRunner:
    engine = make_engine("auto")
    geometry = model.model.geometry(PAGE_TOKENS)
    layers, fingerprint = model.model.attention_layers, model.model.fingerprint
    workers = (
        [] if reach is None else [WorkerLink(reach, "test", engine, geometry, layers, fingerprint, None)]
    )
    placement = Placement(
        workers=workers, residency=Residency(PAGE_TOKENS, WINDOW_TOKENS), overdue_pages=0, split_layer=0
    )
    return ModelRunner(model, tokenizer, engine, geometry, 65_536, placement)


def _generate(
    runner: ModelRunner, prompt: list[int], count: int, after_read: Callable[[], None]
) -> list[int]:
    state = runner.start(GenerationRequest("bench", tuple(prompt), count))
    answer = answer_tokens(runner, state, len(prompt))
    tokens = [next(answer)]
    after_read()
    tokens += islice(answer, count - 1)
    runner.finish(state)
    runner.close()
    return tokens
