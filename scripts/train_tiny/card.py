"""Writes the model card, docs/tiny-model.md, from a training run, its export and its evaluation."""

import argparse
import hashlib
import json
import math
from pathlib import Path
from string import Template

import torch
from safetensors import safe_open

from .batches import BATCH_TOKENS

HERE = Path(__file__).parent
OUT = HERE.parent.parent / "docs" / "tiny-model.md"
# What it was meant to reach, in %.
AIMS = {
    "Backburner, 100 fresh questions": 60,
    "repetition": 90,
    "JSON": 90,
    "lists": 90,
    "counting items": 90,
    "counting sequences": 90,
    "no call when none fits": 90,
}
TOOLS_AIM, ABSENT_AIM = 90, 90
RECALL_AIMS = {"1k": 95, "4k": 95, "16k": 90, "64k": 80}
SCHEMAS = {"1 schema": "one function in the prompt", "3 schemas": "three", "5 schemas": "five"}
UNSEEN = "unseen forms: "


def table(head: str, rows: list[tuple[str, ...]]) -> str:
    columns = head.count("|") + 1
    return "\n".join((f"| {head} |", "|---" * columns + "|", *(f"| {' | '.join(row)} |" for row in rows)))


def figures(scores: dict[str, dict]) -> str:
    def right(name: str) -> str:
        score = scores.get(name)
        return f"{100 * score['right'] / score['asked']:.0f} %" if score else "not measured"

    special = ("recall", "absent", "unseen", "tool call")
    skills = [
        (name, right(name), f"{AIMS[name]} %" if name in AIMS else "")
        for name in scores
        if not name.startswith(special)
    ]
    calls = [
        (said, right(f"tool call, {n}"), right(f"tool call, {n}, thinking"), f"{TOOLS_AIM} %")
        for n, said in SCHEMAS.items()
    ]
    kinds = [(what, kind) for what in ("recall", "absent") for kind in ("synthetic", "natural")]
    contexts = [
        (length, *(right(f"{what} at {length}, {kind}") for what, kind in kinds), f"{aim} %, {ABSENT_AIM} %")
        for length, aim in RECALL_AIMS.items()
    ]
    twins = ("4k, nearly half of them twins", "", right("recall at 4k, many twins"))
    contexts.append((*twins, "", right("absent at 4k, many twins"), ""))
    unseen = [(name[len(UNSEEN) :], right(name)) for name in scores if name.startswith(UNSEEN)]
    return "\n\n".join(
        (
            table("of 100 each | right | aimed at", skills),
            table(
                "tool calls, exact name and arguments | without thinking | with thinking | aimed at", calls
            ),
            table(
                "context | recall, synthetic | recall, natural | absent, synthetic | absent, natural | aimed at",
                contexts,
            ),
            table("in unseen forms | right", unseen),
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="the training folder, with checkpoint.pt")
    parser.add_argument("model", type=Path, help="the exported folder")
    parser.add_argument("scores", type=Path, nargs="+", help="what evaluate --json wrote")
    args = parser.parse_args()
    state = torch.load(args.run / "checkpoint.pt", map_location="cpu", weights_only=False)
    weights = args.model / "model.safetensors"
    with safe_open(weights, "np") as file:
        parameters = sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    scores: dict[str, dict] = {}
    for path in args.scores:
        scores.update(json.loads(path.read_text()))
    files = sorted(f for f in args.model.iterdir() if f.is_file())
    OUT.write_text(
        Template((HERE / "card.md").read_text()).substitute(
            parameters=f"{parameters / 1e6:.2f}",
            weights_mb=f"{weights.stat().st_size / 1e6:.1f}",
            tokens=round(state["step"] * BATCH_TOKENS / 1e6),
            minutes=round(state["seconds"] / 60),
            figures=figures(scores),
            hashes="\n".join(f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}" for f in files),
        )
    )
    print(f"wrote {OUT}")


if __name__ == "__main__":
    main()
