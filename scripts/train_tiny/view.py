"""Prints generated conversations, to be read by a human."""

import argparse
import random
from pathlib import Path

from tokenizers import Tokenizer

from .conversation import conversation
from .split import Draw
from .tokenizer import letter_pieces


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=5)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json whose pieces make odd words")
    parser.add_argument("--side", choices=("train", "evaluate", "strange"), default="train")
    args = parser.parse_args()
    pieces = letter_pieces(Tokenizer.from_file(str(args.tokenizer))) if args.tokenizer else []
    for i in range(args.count):
        row = conversation(Draw(random.Random(f"view-{args.seed}-{i}"), args.side, pieces), args.tokens)
        print(f"{'=' * 30} {i}")
        for text, learnt in row.pieces:
            print(f"\x1b[32m{text}\x1b[0m" if learnt else text, end="")
        print()


if __name__ == "__main__":
    main()
