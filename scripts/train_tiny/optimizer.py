"""Muon for the matrices, AdamW for the rest, both over one step-based schedule."""

import math
from bisect import bisect_right
from dataclasses import dataclass

import torch
import torch.distributed
from torch import Tensor

MUON_LR = 0.02
ADAM_LR = 3e-3
ADAM_BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.05  # times the rate, on matrices only
WARM_UP_STEPS = 60
MOMENTUM_STEPS = 200
# From this share of the first course on the rate decays in a line, in the others from their start: most of the loss
# goes only there.
DECAY_FROM = 0.45
# Courses, each with the step where it ends, the rate where it begins, and whether it ends with the mean of the weights
# that it began with and those that it came to. The later ones are on rows that are dense with what is hardest; the mean
# keeps what a course would forget (of 100 fresh questions 67 were right after it, 65 before and 57 without; of 100
# requests for one function of three 85, not 83 or 79).
COURSES = ((3300, 1.0, False), (4400, 0.4, True), (5500, 0.4, True))
# Quintic Newton-Schulz coefficients of Muon: a fast start, and singular values end near one.
_NS = (3.4445, -4.7750, 2.0315)


@dataclass(frozen=True, slots=True)
class Course:
    index: int
    start: int
    stop: int
    rate: float  # where it begins
    averaged: bool


def course(step: int, steps: int) -> Course:
    """In which course a step is; COURSES in proportion if there are more steps or fewer."""
    stops = [steps * end // COURSES[-1][0] for end, *_ in COURSES]
    index = min(bisect_right(stops, step), len(stops) - 1)
    return Course(index, stops[index - 1] if index else 0, stops[index], *COURSES[index][1:])


def rate(step: int, steps: int) -> float:
    """The share of the full learning rate at a step."""
    now = course(step, steps)
    warm = min(1.0, (step - now.start + 1) / WARM_UP_STEPS)
    flat = 0.0 if now.index else DECAY_FROM
    left = (now.stop - step) / ((now.stop - now.start) * (1 - flat))
    return warm * now.rate * max(0.0, min(1.0, left))


def orthogonal(G: Tensor, dtype: torch.dtype) -> Tensor:
    """Newton-Schulz on a stack [n, rows, columns]; it tolerates bf16."""
    a, b, c = _NS
    X = G.to(dtype)
    tall = X.shape[-2] > X.shape[-1]
    if tall:
        X = X.mT
    X = X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        A = X @ X.mT
        X = a * X + (b * A + c * (A @ A)) @ X
    return (X.mT if tall else X).float()


def is_matrix(name: str) -> bool:
    """What Muon turns: projections, but not the embedding and the two thin gate projections of a delta layer."""
    return name.endswith(("proj/weight", "in_proj_qkv/weight", "in_proj_z/weight"))


class Optimizer:
    """Each of `ranks` processes turns its share of the matrices, and gets the others' updates: Newton-Schulz is a sixth
    of a step where every process does all of it."""

    def __init__(
        self,
        parameters: dict[str, torch.nn.Parameter],
        dtype: torch.dtype = torch.float32,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.dtype = dtype  # of Newton-Schulz
        self.rank, self.ranks = rank, ranks
        groups: dict[tuple[int, ...], list[str]] = {}
        for name, p in parameters.items():
            if is_matrix(name):
                groups.setdefault(tuple(p.shape), []).append(name)
        self.parameters = parameters
        self.groups = list(groups.values())
        self.matrices = [n for names in self.groups for n in names]
        self.others = [n for n in parameters if not is_matrix(n)]
        self.momentum = {n: torch.zeros_like(p) for n, p in parameters.items()}
        self.square = {n: torch.zeros_like(parameters[n]) for n in self.others}

    @torch.no_grad()
    def step(self, step: int, steps: int) -> None:
        share = rate(step, steps)
        heavy = min(1.0, step / MOMENTUM_STEPS)
        beta = 0.85 + (0.95 - 0.85) * heavy
        updates = self._orthogonal_updates(beta)
        for n, u in zip(self.matrices, updates, strict=True):
            self.parameters[n].mul_(1 - MUON_LR * share * WEIGHT_DECAY).sub_(u, alpha=MUON_LR * share)
        b1, b2 = ADAM_BETAS
        for n in self.others:
            p, g = self.parameters[n], self.parameters[n].grad
            m = self.momentum[n].lerp_(g, 1 - b1)
            s = self.square[n].lerp_(g.square(), 1 - b2)
            hat = (s / (1 - b2 ** (step + 1))).sqrt_().add_(1e-10)
            p.addcdiv_(m, hat, value=-ADAM_LR * share / (1 - b1 ** (step + 1)))

    def _orthogonal_updates(self, beta: float) -> list[Tensor]:
        """The update of every matrix, each found by one process."""
        for n in self.matrices:
            self.momentum[n].lerp_(self.parameters[n].grad, 1 - beta)
        flat = torch.zeros(sum(self.parameters[n].numel() for n in self.matrices))
        parts = flat.split([self.parameters[n].numel() for n in self.matrices])
        updates = {n: u.view_as(self.parameters[n]) for n, u in zip(self.matrices, parts, strict=True)}
        for i, names in enumerate(self.groups):
            mine = names[(self.rank + i) % self.ranks :: self.ranks]  # i: odd groups' extra ones go around
            if not mine:
                continue
            G = torch.stack([self.parameters[n].grad.lerp(self.momentum[n], beta) for n in mine])
            rows, columns = G.shape[1:]
            update = orthogonal(G, self.dtype) * math.sqrt(max(1.0, rows / columns))
            for n, u in zip(mine, update, strict=True):
                updates[n].copy_(u)
        if self.ranks > 1:
            torch.distributed.all_reduce(flat)
        return list(updates.values())

    def state(self) -> dict[str, dict[str, Tensor]]:
        return {"momentum": self.momentum, "square": self.square}

    def restore(self, state: dict[str, dict[str, Tensor]]) -> None:
        for mine, theirs in ((self.momentum, state["momentum"]), (self.square, state["square"])):
            for n, value in theirs.items():
                mine[n].copy_(value)
