"""Facts in long contexts, with the pages that hold them here and at a worker: recall side by side, and equal tokens.

    python benchmarks/recall.py --json [--lengths 1k 4k 16k 64k] [--model FOLDER]

Ten facts are spread over a text that the model has never seen (the reference manual that comes with Python); each is
asked for in a turn of its own. Each side keeps the conversation, so that a text is read once and every question goes on
from there. The window is a sixteenth of the context, so that almost all facts lie in held pages.
"""

import argparse
import random
import time
from itertools import islice
from pathlib import Path
from pydoc_data.topics import topics

from answer import answer_tokens
from harness import fair_environment, finish

from backburner.attention.select import make_engine
from backburner.engine.request import GenerationRequest
from backburner.engine.runner import ModelRunner, Placement
from backburner.engine.worker_link import WorkerLink
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

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.held_pages = 0
        self.read_tokens = 0

    def ask(self, prompt: list[int], limit: int) -> list[int]:
        """The greedy answer, up to the end token."""
        runner, tokens = self.runner, []
        state = runner.start(GenerationRequest("recall", tuple(prompt), limit))
        try:
            self.read_tokens += len(prompt) - runner.read_from(state)
            for token in islice(answer_tokens(runner, state, len(prompt)), limit):
                tokens.append(token)
                if runner.is_end(token):
                    break
            self.held_pages = state.table.held
        finally:
            runner.finish(state)
        return tokens


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--lengths", nargs="+", choices=tuple(LENGTHS), default=list(LENGTHS))
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
        worker = WorkerLink(connect, "loopback", engine, geometry, model.attention_layers, model.fingerprint)
        alone = Side(ModelRunner(loaded, tokenizer, engine, geometry, 2 * tokens))
        held = Side(
            ModelRunner(loaded, tokenizer, engine, geometry, 2 * tokens, Placement([worker], residency))
        )
        text, questions = planted_text(tokenizer, tokens, random.Random(args.seed))
        prefix = [{"role": "system", "content": text}]
        whole = tokenizer.apply_chat_template(prefix, add_generation_prompt=False, tokenize=True)
        start = time.monotonic()
        for side in (alone, held):
            side.ask(list(whole), 1)
        right = [0, 0]
        for question, value in questions:
            turn = [*prefix, {"role": "user", "content": question}]
            ids = list(tokenizer.apply_chat_template(turn, add_generation_prompt=True, enable_thinking=False))
            assert ids[: len(whole)] == list(whole), "the template must render earlier messages the same way"
            answers = [side.ask(ids, ANSWER_TOKENS) for side in (alone, held)]
            identical &= answers[0] == answers[1]
            for i, answer in enumerate(answers):
                right[i] += value in tokenizer.decode(answer)
        result |= {
            f"{name}_tokens": len(whole),
            f"{name}_alone": right[0],
            f"{name}_held": right[1],
            f"{name}_held_pages": held.held_pages,
            f"{name}_read_tokens": held.read_tokens,
            f"{name}_s": time.monotonic() - start,
        }
        held.runner.close()
    process.close()
    finish(result | {"identical": identical}, args.json)


if __name__ == "__main__":
    main()
