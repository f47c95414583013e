"""The page table of one sequence: K and V of every attention layer, in pages that are here or held by the worker."""

import secrets
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from backburner.attention.engine import AttentionEngine, Geometry, Partial
from backburner.attention.folded import attend_folded
from backburner.attention.numpy_engine import widen
from backburner.kv.keys import page_key


class Question(Protocol):
    """A query that is on its way to the holder of pages."""

    def answer(self) -> Partial:
        """Waits for the partial. Raises WorkerLost."""
        ...

    def abandon(self) -> None:
        """Nobody will want the answer. Never raises."""
        ...


class Holder(Protocol):
    """Whoever holds the pages that the host has dropped."""

    def ask(self, layer: int, count: int, q: npt.NDArray[Any]) -> Question:
        """Sends one query block for the sequence's first `count` pages of a layer and returns at once."""
        ...


class LayerPages:
    """One attention layer's keys and values. It is the cache object that `PagedAttention` works with."""

    def __init__(self, table: "PageTable", layer: int) -> None:
        # Weak, or what a conversation that was given up takes would wait for Python's collector of cycles.
        self._table: PageTable = weakref.proxy(table)
        self.layer = layer
        self.pages: list[Any] = []  # None where the page is held
        self.offset = 0  # positions stored

    def append(self, k: npt.NDArray[Any], v: npt.NDArray[Any]) -> None:
        """Adds rows. k, v: [kv_heads, T, head_dim] in the geometry's dtype."""
        engine, geometry = self._table.engine, self._table.geometry
        done, total = 0, k.shape[1]
        while done < total:
            room = -self.offset % geometry.page_tokens
            if room == 0:
                self.pages.append(self._table.new_page())
                room = geometry.page_tokens
            rows = min(room, total - done)
            engine.append(self.pages[-1], k[:, done : done + rows], v[:, done : done + rows])
            self.offset += rows
            done += rows

    def ask(self, q: npt.NDArray[Any], k: npt.NDArray[Any], v: npt.NDArray[Any]) -> "PendingAttention":
        """Sends q to the holder of the held pages and appends the rows. What is here is attended to by `result`.

        q: [q_heads, T, head_dim]; k, v: [kv_heads, T, head_dim], all in the geometry's dtype.
        """
        table = self._table
        first_position = self.offset  # of the new rows
        # Held pages lie wholly before the new rows, so the question can go out first and be answered meanwhile.
        question = table.holder.ask(self.layer, table.held, q) if table.held and table.holder else None
        try:
            self.append(k, v)
        except BaseException:
            if question is not None:
                question.abandon()
            raise
        # The pages as they are now: another query's rows may follow before this one is computed.
        pages = self.pages[table.held :]
        visible = [
            first_position + 1 - i * table.geometry.page_tokens for i in range(table.held, len(self.pages))
        ]
        return PendingAttention(table, q, pages, visible, question)

    def truncate(self, tokens: int) -> None:
        """Keeps positions [0, tokens). The page that `tokens` lies in has to be here."""
        size = self._table.geometry.page_tokens
        full, rest = divmod(tokens, size)
        if self.offset <= tokens:
            return
        old = self.pages[full]
        while len(self.pages) > full:
            self.pages.pop()
            self._table.page_gone(self.layer, len(self.pages))
        self.offset = full * size
        if rest:
            # A new page, not a shorter old one: whoever else has the old one keeps it whole, and engines rely on
            # zeros behind the last row. Where memory is counted, what has gone has made room for it.
            self.append(*self._table.engine.rows(old, 0, rest))


class PendingAttention:
    """Attention of one query block whose rows are stored: over held pages asked for, over local ones not yet."""

    def __init__(
        self,
        table: "PageTable",
        q: npt.NDArray[Any],
        pages: Sequence[Any],
        visible: Sequence[int],
        question: Question | None,
    ) -> None:
        self._table = table
        self._q = q
        self._pages = pages
        self._visible = visible  # rows of each page that the first query sees
        self._question = question

    @property
    def asked(self) -> bool:
        """Whether the holder of held pages was asked."""
        return self._question is not None

    def result(self) -> npt.NDArray[np.float32]:
        """Attends to the local pages, waits for the others' partial, and merges: o [q_heads, T, head_dim]."""
        table, question = self._table, self._question
        try:
            before = question.answer if question else None
            return attend_folded(
                table.engine, table.geometry, widen(self._q), self._pages, self._visible, before
            ).o
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Nobody will want the result. Never raises."""
        if self._question is not None:
            self._question.abandon()


class PageTable:
    """All attention layers' pages of one sequence, and how many of the leading ones are held.

    Held pages are always a prefix, the same for all layers: the worker folds that prefix and the host goes on from
    there, which gives the same bits as folding everything here.
    """

    def __init__(
        self,
        engine: AttentionEngine,
        geometry: Geometry,
        layers: Sequence[int],
        fingerprint: bytes,
        holder: Holder | None = None,
        shared_tokens: int | None = None,
    ) -> None:
        """fingerprint: of all that the rows' bits depend on but the tokens. shared_tokens: how many leading positions
        are computed by whole ubatches of a read, as any host would; None: all. Rows after them depend on how this
        sequence came to them, so pages that have any are named for it alone."""
        self.engine = engine
        self.geometry = geometry
        self.holder = holder
        self.layers = {layer: LayerPages(self, layer) for layer in layers}
        self.keys: list[bytes] = []  # of the full pages
        self.held = 0
        self._fingerprint = fingerprint
        self.shared_tokens = shared_tokens
        self._salt = secrets.token_bytes(16)

    @property
    def tokens(self) -> int:
        """Positions stored in every layer."""
        return min((layer.offset for layer in self.layers.values()), default=0)

    def name_full_pages(self, tokens: Sequence[int]) -> None:
        """Extends `keys` to all pages that are full. `tokens` are the sequence's, at least as many as stored."""
        size = self.geometry.page_tokens
        for i in range(len(self.keys), self.tokens // size):
            start, stop = i * size, (i + 1) * size
            parent = self.keys[-1] if self.keys else b""
            shared = self.shared_tokens is None or stop <= self.shared_tokens
            self.keys.append(
                page_key(self._fingerprint, parent, tokens[start:stop], b"" if shared else self._salt)
            )

    def new_page(self) -> Any:
        """An empty page; where memory is counted, this is what counts it."""
        return self.engine.new_page(self.geometry)

    def page_gone(self, layer: int, index: int) -> None:
        """A layer's page was cut off; where memory is counted, this gives it back."""

    def truncate(self, tokens: int) -> None:
        """Keeps positions [0, tokens) in every layer. The page that `tokens` lies in has to be here."""
        for layer in self.layers.values():
            layer.truncate(tokens)
        full = tokens // self.geometry.page_tokens
        del self.keys[full:]
        # The same tokens may come again in other steps, with other bits: not under the names that went before.
        self._salt = secrets.token_bytes(16)
        self.held = min(self.held, full)

    def page(self, index: int) -> Iterator[tuple[int, Any]]:
        """(layer, page) for each layer of a page that is here."""
        for number, layer in self.layers.items():
            yield number, layer.pages[index]

    def drop_to(self, held: int) -> None:
        """Gives up the host's copy of pages before `held`: from now on the holder answers for them."""
        for index in range(self.held, held):
            for layer in self.layers.values():
                layer.pages[index] = None
        self.held = max(self.held, held)
