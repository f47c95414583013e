"""The batch of a step: length from the curriculum, rows and positions from the seed and the step alone."""

import random
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from .conversation import MIXES, conversation
from .optimizer import course
from .split import Draw

BATCH_TOKENS = 4096
# Until which share of the run which lengths are drawn: short ones first, since copying is learnt there.
CURRICULUM = (
    (0.28, (256,)),
    (0.42, (256, 512)),
    (0.62, (256, 512, 512, 1024)),
    (0.84, (512, 512, 1024, 2048)),
    (1.00, (256, 512, 1024, 2048, 4096)),
)
LATER_COURSES = (256, 512, 512, 1024, 1024, 2048, 4096)
# Positions jump in half of the rows, so that rotations of 64k tokens occur in rows of 256.
JUMP_SHARE, LARGEST_JUMP_BITS = 0.5, 15
# What is not an answer is learnt a little too, on a quarter of its tokens: a language model's prior, at little cost.
CONTEXT_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Batch:
    tokens: Tensor  # [B, T]
    positions: Tensor  # [B, T]
    answers: Tensor  # flat indices whose next token is the assistant's
    context: Tensor  # flat indices of others that are learnt


def length_of(step: int, steps: int) -> int:
    now = course(step, steps)
    lengths = LATER_COURSES
    if now.index == 0:
        lengths = next(lengths for until, lengths in CURRICULUM if step / now.stop < until)
    return random.Random(f"length-{step}").choice(lengths)


def _positions(rng: random.Random, length: int) -> np.ndarray:
    gaps = np.ones(length, np.int64)
    gaps[0] = 0
    if rng.random() < JUMP_SHARE:
        for _ in range(rng.randint(1, 3)):
            gaps[rng.randrange(length)] += int(2 ** rng.uniform(4, LARGEST_JUMP_BITS))
    return gaps.cumsum()


class Batches:
    def __init__(self, tokenizer: Tokenizer, pieces: list[str], seed: int, steps: int) -> None:
        self.tokenizer, self.pieces, self.seed, self.steps = tokenizer, pieces, seed, steps
        self.end = tokenizer.token_to_id("<|endoftext|>")

    def at(self, step: int, rank: int = 0, ranks: int = 1) -> Batch:
        """The share of process `rank` in a step: as many rows as make BATCH_TOKENS among all, at least one for each."""
        length = length_of(step, self.steps)
        mix = MIXES[min(course(step, self.steps).index, len(MIXES) - 1)]
        rows = max(1, BATCH_TOKENS // length // ranks)
        rng = random.Random(f"{self.seed}-{step}-{rank}")
        tokens = np.full((rows, length + 1), self.end, np.int64)
        learnt = np.zeros((rows, length + 1), np.int8)  # 1: answer, 2: context
        positions = np.empty((rows, length), np.int64)
        for r in range(rows):
            row = conversation(Draw(rng, "train", self.pieces), length, mix)
            encoded = self.tokenizer.encode_batch([text for text, _ in row.pieces])
            at = 0
            for (_, answer), piece in zip(row.pieces, encoded, strict=True):
                ids = piece.ids[: length + 1 - at]
                tokens[r, at : at + len(ids)] = ids
                learnt[r, at : at + len(ids)] = 1 if answer else 2
                at += len(ids)
                if at > length:
                    break
            positions[r] = _positions(rng, length)
        wanted = learnt[:, 1:].reshape(-1)
        lottery = np.random.default_rng((step, rank)).random(wanted.shape) < CONTEXT_SHARE
        return Batch(
            torch.from_numpy(tokens),
            torch.from_numpy(positions),
            torch.from_numpy(np.flatnonzero(wanted == 1)),
            torch.from_numpy(np.flatnonzero((wanted == 2) & lottery)),
        )
