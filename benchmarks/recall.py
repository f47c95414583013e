"""Facts in long contexts, with the pages that hold them here and at a worker: recall side by side, and equal tokens.

    python benchmarks/recall.py --json [--lengths 1k 4k 16k 64k] [--model FOLDER]

Ten facts are spread over a text that the model has never seen (the reference manual that comes with Python); each is
asked for in a turn of its own. A text is read once on each side, and every question goes on from there. The window is
a sixteenth of the context, so that almost all facts lie in held pages.
"""

import argparse
import copy
import random
import time
from pathlib import Path
from pydoc_data.topics import topics

from harness import fair_environment, finish

from backburner.attention.select import make_engine
from backburner.engine.request import GenerationRequest
from backburner.engine.runner import ModelRunner, Sequence
from backburner.engine.scheduler import UBATCH_TOKENS
from backburner.engine.worker_link import WorkerLink
from backburner.kv.mover import MOVE_DEADLINE_S
from backburner.kv.residency import Residency
from backburner.model.load import TINY, load, read_tokenizer
from backburner.worker.loopback import LoopbackWorker

LENGTHS = {"1k": 1024, "4k": 4096, "16k": 16_384, "64k": 65_536}
FACTS = 10
ANSWER_TOKENS = 32
COLOURS = ("blue", "red", "green", "yellow", "white", "black", "grey", "brown", "purple", "orange")
THINGS = ("gate", "box", "door", "car", "house", "lamp", "boat", "room", "bag", "bridge")


def planted_text(tokenizer: object, tokens: int, rng: random.Random) -> tuple[str, list[tuple[str, str]]]:
    """A text of about `tokens` tokens, and (question, value) of each fact in it."""
    things = [f"{c} {t}" for c, t in zip(rng.sample(COLOURS, FACTS), rng.sample(THINGS, FACTS), strict=True)]
    values = [str(rng.randrange(1000, 10_000)) for _ in things]
    manual = "\n\n".join(topics.values())
    start = rng.randrange(len(manual))
    manual = (manual[start:] + manual)[: tokens * 5]
    ids = tokenizer.encode(manual, add_special_tokens=False)  # type: ignore[attr-defined]
    manual = manual[: int(len(manual) * (tokens - 30 * FACTS) / len(ids))]
    sentences = manual.split(". ")
    for i, (thing, value) in enumerate(zip(things, values, strict=True)):
        at = (i * len(sentences) + rng.randrange(len(sentences))) // FACTS
        sentences[at] = f"The code of the {thing} is {value}. {sentences[at]}"
    return ". ".join(sentences), [
        (f"What is the code of the {thing}?", value) for thing, value in zip(things, values, strict=True)
    ]


class Side:
    """A host, alone or with a worker, that reads a text once and then answers questions about it."""

    def __init__(self, runner: ModelRunner, worker: WorkerLink | None) -> None:
        self.runner, self.worker = runner, worker
        self.held_pages = 0

    def read(self, tokens: list[int]) -> Sequence:
        state = self.runner.start(GenerationRequest("recall", tuple(tokens), 1))
        self._run(state, 0)
        return state

    def answer(self, base: Sequence, more: list[int]) -> list[int]:
        state = self._fork(base, more)
        row = self._run(state, len(base.tokens))
        tokens: list[int] = []
        while True:
            tokens.append(int(row.argmax().item()))
            if self.runner.is_end(tokens[-1]) or len(tokens) == ANSWER_TOKENS:
                break
            state.tokens.append(tokens[-1])
            row = self.runner.run(state, tokens[-1:], last=True)
        self.held_pages = state.table.held
        self.runner.finish(state)
        return tokens

    def _run(self, state: Sequence, read: int):  # type: ignore[no-untyped-def]
        total = len(state.tokens)
        for start in range(read, total, UBATCH_TOKENS):
            stop = min(start + UBATCH_TOKENS, total)
            row = self.runner.run(state, state.tokens[start:stop], last=stop == total)
        return row

    def _fork(self, base: Sequence, more: list[int]) -> Sequence:
        """Goes on from `base`: full pages are shared, here and at the worker; the open one is copied."""
        state = self.runner.start(GenerationRequest("recall", tuple(base.tokens + more), 1))
        for mine, theirs in zip(state.caches, base.caches, strict=True):
            if hasattr(theirs, "pages"):
                mine.pages = [*theirs.pages[:-1], copy.deepcopy(theirs.pages[-1])]
                mine.offset = theirs.offset
            else:
                mine.cache = list(theirs.cache)
        state.table.keys = list(base.table.keys)
        state.table.name_full_pages(state.tokens)
        if base.table.held and self.worker is not None and state.held is not None:
            state.held.settle(state.table, state.prompt_tokens)
            assert self.worker._mover.wait_bound(state.held._moves, base.table.held, MOVE_DEADLINE_S)
            state.table.drop_to(base.table.held)
        return state


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--lengths", nargs="*", choices=tuple(LENGTHS), default=list(LENGTHS))
    parser.add_argument("--model", type=Path, default=TINY)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    fair_environment()

    loaded, tokenizer = load("tiny", args.model), read_tokenizer(args.model)
    model, engine = loaded.model, make_engine("auto")
    result: dict[str, object] = {"facts": FACTS}
    identical = True
    process = LoopbackWorker(2 * 2**30)
    for name in args.lengths:
        tokens = LENGTHS[name]
        page_tokens = max(64, tokens // 64)
        geometry = model.geometry(page_tokens)
        residency = Residency(page_tokens, max(page_tokens, tokens // 16))
        connect = process.connector(engine.name)
        worker = WorkerLink(
            connect, "loopback", engine, geometry, model.attention_layers, model.fingerprint, residency
        )
        alone = Side(ModelRunner(loaded, tokenizer, engine, geometry, 2 * tokens, None), None)
        held = Side(ModelRunner(loaded, tokenizer, engine, geometry, 2 * tokens, worker), worker)
        text, questions = planted_text(tokenizer, tokens, random.Random(args.seed))
        prefix = [{"role": "system", "content": text}]
        whole = tokenizer.apply_chat_template(prefix, add_generation_prompt=False, tokenize=True)
        start = time.monotonic()
        bases = [side.read(list(whole)) for side in (alone, held)]
        right = [0, 0]
        for question, value in questions:
            turn = [*prefix, {"role": "user", "content": question}]
            ids = list(tokenizer.apply_chat_template(turn, add_generation_prompt=True, enable_thinking=False))
            assert ids[: len(whole)] == list(whole), "the template must render earlier messages the same way"
            answers = [
                side.answer(base, ids[len(whole) :]) for side, base in zip((alone, held), bases, strict=True)
            ]
            identical &= answers[0] == answers[1]
            for i, answer in enumerate(answers):
                right[i] += value in tokenizer.decode(answer)
        result |= {
            f"{name}_tokens": len(whole),
            f"{name}_alone": right[0],
            f"{name}_held": right[1],
            f"{name}_held_pages": held.held_pages,
            f"{name}_s": time.monotonic() - start,
        }
        held.runner.close()
    process.close()
    finish(result | {"identical": identical}, args.json)


if __name__ == "__main__":
    main()
