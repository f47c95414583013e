"""One conversation's state: tokens, recurrent states and page table, and the way back to an earlier position."""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
from mlx_lm.models.cache import ArraysCache

from backburner.engine.sampling import Sampler
from backburner.engine.scheduler import UBATCH_TOKENS
from backburner.engine.scores import PromptScores
from backburner.kv.held import HeldPages
from backburner.kv.keys import page_key
from backburner.kv.pages import PageTable

# Checkpoints kept for a sequence, with the newest. One takes 151 MB in a 27B model.
CHECKPOINTS_MAX = 4

# How far apart checkpoints of a long read are. Going back costs reading again from the one before: 4,096 tokens are
# 40 s on the first Backburner's host, half of it on average.
CHECKPOINT_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All recurrent states after `position` tokens. MLX arrays do not change: what is kept are references."""

    position: int
    states: dict[int, list[Any]]  # by recurrent layer


class Checkpoints:
    """A few positions to go back to, at ends of whole ubatches: the newest, the one before the last turn, and others as
    evenly as they came."""

    def __init__(self, limit: int = CHECKPOINTS_MAX) -> None:
        self._limit = limit
        self._kept: list[Checkpoint] = []  # by position

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def positions(self) -> tuple[int, ...]:
        return tuple(c.position for c in self._kept)

    @property
    def newest(self) -> int:
        """The last position; 0 without any."""
        return self._kept[-1].position if self._kept else 0

    def add(self, checkpoint: Checkpoint, turn: int = 0) -> None:
        """turn: where the present turn's reading began. Who asks again or edits the question goes back there."""
        self.forget_after(checkpoint.position - 1)
        self._kept.append(checkpoint)
        if len(self._kept) > self._limit:
            # The one whose going leaves the smallest gap; never the newest, and the turn's only if no other is left.
            edges = [0, *self.positions]
            older = range(len(self._kept) - 1)
            choice = [i for i in older if self._kept[i].position != turn] or list(older)
            del self._kept[min(choice, key=lambda i: edges[i + 2] - edges[i])]

    def last(self, position: int) -> Checkpoint | None:
        """The newest at or before a position; None: the beginning."""
        found = [c for c in self._kept if c.position <= position]
        return found[-1] if found else None

    def forget_after(self, position: int) -> None:
        self._kept = [c for c in self._kept if c.position <= position]


@dataclass(eq=False, slots=True)
class Sequence:
    """One conversation's state, and who holds its old pages. It may serve several requests, one after the other."""

    prompt_tokens: int
    tokens: list[int]  # the prompt, then the answer; the newest may not have run yet
    caches: list[Any]  # by layer: mlx-lm's ArraysCache, or kv.LayerPages
    table: PageTable
    held: HeldPages | None
    sample: Sampler
    fingerprint: bytes
    read_from: int = 0  # where this request's reading began: what lies before was there already
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    ubatch_keys: list[bytes] = field(
        default_factory=list
    )  # names of the tokens up to each whole ubatch's end
    failed: bool = False  # a step of it did not end: there is no going on
    scores: PromptScores | None = None  # while a request asks for its prompt's log probabilities
    tail: Any = None  # engine.tail.TailRead while a worker runs the tail layers of a read

    @property
    def recurrent_layers(self) -> list[int]:
        return [i for i, cache in enumerate(self.caches) if isinstance(cache, ArraysCache)]

    def keep(self, position: int) -> None:
        """Makes a checkpoint: all layers stand at `position`."""
        self.checkpoints.add(
            Checkpoint(position, {i: list(self.caches[i].cache) for i in self.recurrent_layers}),
            self.read_from,
        )

    def saves(self, position: int) -> int:
        """How many tokens need no reading if a prompt goes on from `position`; 0: not worth taking this one for it."""
        checkpoint = self.checkpoints.last(position)
        kept = checkpoint.position if checkpoint else 0
        # One that has more to lose than to give stays for its own next request.
        return kept if 2 * kept >= self.prompt_tokens else 0

    def rewind(self, position: int) -> int:
        """Goes back to the last checkpoint at or before `position`, and says where that is. Raises WorkerLost.

        Rows are cut exactly there, in the middle of a page too; a page that is away comes back for that.
        """
        checkpoint = self.checkpoints.last(position)
        target = checkpoint.position if checkpoint else 0
        table = self.table
        full, rest = divmod(target, table.geometry.page_tokens)
        if rest and full < table.held and self.held is not None:
            self.held.fetch(table, full)
        table.truncate(target)
        if self.held is not None:
            self.held.truncate(table, full)
        for i in self.recurrent_layers:
            self.caches[i].cache = list(checkpoint.states[i]) if checkpoint else [None, None]
        self.checkpoints.forget_after(target)
        del self.ubatch_keys[target // UBATCH_TOKENS :]
        return target

    def rows(self, layer: int, start: int, count: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """K and V [kv_heads, count, head_dim] of positions of one page, wherever it is. Raises WorkerLost."""
        table = self.table
        index, first = divmod(start, table.geometry.page_tokens)
        page = table.layers[layer].pages[index]
        if page is None:
            assert self.held is not None
            page = self.held.copy(layer, index)
        return table.engine.rows(page, first, first + count)

    def name_ubatches(self, until: int) -> list[bytes]:
        """Names of the tokens up to the end of each whole ubatch that ends at or before `until`."""
        keys = self.ubatch_keys
        for i in range(len(keys), until // UBATCH_TOKENS):
            tokens = self.tokens[i * UBATCH_TOKENS : (i + 1) * UBATCH_TOKENS]
            keys.append(page_key(self.fingerprint, keys[-1] if keys else b"", tokens))
        return keys[: until // UBATCH_TOKENS]


def common_prefix(a: Items[int], b: Items[int]) -> int:
    """How many leading tokens are equal."""
    limit = min(len(a), len(b))
    if a[:limit] == b[:limit]:
        return limit
    low, high = 0, limit  # equal up to low, not up to high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
