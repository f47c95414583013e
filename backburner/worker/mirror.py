"""One sequence at the tail: K/V pages and recurrent states of a range of layers, and running chunks through them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from backburner.attention.engine import AttentionEngine, Geometry
from backburner.attention.numpy_engine import STORAGE_DTYPES
from backburner.errors import BadRequest
from backburner.kv.pages import PageTable
from backburner.model.arrays import from_numpy, to_numpy
from backburner.model.hybrid import HybridModel
from backburner.model.load import Part
from backburner.worker.store import PageStore

# Positions whose recurrent states a mirror remembers. A host goes back to the end of a prompt or of its last whole
# ubatch; a set of states of the 27B model takes 150 MB.
KEPT_MAX = 4

Array = npt.NDArray[Any]
State = tuple[mx.array, mx.array]  # conv [1, kernel - 1, channels], recurrent [1, heads, Dv, Dk]


def numpy_dtype(dtype: mx.Dtype) -> np.dtype[Any]:
    """What `to_numpy` makes of an MLX dtype."""
    return np.dtype(STORAGE_DTYPES[str(dtype).removeprefix("mlx.core.")])


@dataclass(frozen=True, slots=True)
class Span:
    """What a mirror is of. Equal spans and equal keys mean equal rows and states."""

    part: Part
    fingerprint: bytes
    ubatch_tokens: int
    geometry: Geometry


class MirrorPages(PageTable):
    """A page table whose pages count against the store's budget, and whose full ones may become the store's."""

    def __init__(
        self,
        store: PageStore,
        reserve: Callable[[int], None],
        engine: AttentionEngine,
        geometry: Geometry,
        layers: Sequence[int],
    ) -> None:
        """reserve: takes bytes of the store's budget. Raises OutOfBudget."""
        super().__init__(engine, geometry, layers, b"")
        self._store = store
        self._reserve = reserve
        self._page_bytes = engine.page_bytes(geometry)
        self._names: dict[tuple[int, int], bytes] = {}  # (layer, index) -> key, of pages that are the store's

    def new_page(self) -> Any:
        self._reserve(self._page_bytes)
        try:
            return super().new_page()
        except BaseException:
            self._store.unreserve(self._page_bytes)
            raise

    def page_gone(self, layer: int, index: int) -> None:
        key = self._names.pop((layer, index), None)
        if key is None:
            self._store.unreserve(self._page_bytes)
        else:
            self._store.unpin(key, layer)

    def name(self, keys: Sequence[bytes]) -> None:
        """Makes the first pages the store's under these keys, without a copy. Raises BadRequest."""
        if len(keys) * self.geometry.page_tokens > self.tokens:
            raise BadRequest(f"{len(keys)} keys for {self.tokens // self.geometry.page_tokens} full pages")
        for i, key in enumerate(keys):
            for number, layer in self.layers.items():
                known = self._names.get((number, i))
                if known is None:
                    layer.pages[i] = self._store.adopt(key, number, layer.pages[i], self.geometry)
                    self._names[number, i] = key
                elif known != key:
                    raise BadRequest(f"page {i} has another name at layer {number}")

    def rows(self, layer: int, start: int, stop: int) -> tuple[Array, Array]:
        """Rows [start, stop) of a layer as k, v [kv_heads, rows, head_dim], bit for bit as they were appended."""
        size = self.geometry.page_tokens
        pieces = [
            self.engine.rows(
                self.layers[layer].pages[i], max(start - i * size, 0), min(stop - i * size, size)
            )
            for i in range(start // size, -(-stop // size))
        ]
        if len(pieces) == 1:
            return pieces[0]
        k, v = zip(*pieces, strict=True)
        return np.concatenate(k, axis=1), np.concatenate(v, axis=1)


class Mirror:
    """What the worker knows of one sequence at the layers of a span. Only the tail's thread touches it, or whoever took
    it out of the tail's list.

    Each layer has its own position: rows come one layer after another with PutRows, states with PutState. A chunk has
    to find all of them where it begins.
    """

    def __init__(self, span: Span, model: HybridModel, pages: MirrorPages) -> None:
        self.span = span
        self.pages = pages
        self.keys: list[
            bytes
        ] = []  # keys[i] names tokens [0, (i + 1) * ubatch_tokens), which may be still to come
        self._model_shapes = (model.conv_shape, model.recurrent_shape)
        self._dtype = model.dtype
        self._new_state = model.new_state
        self._recurrent = [
            i for i in range(span.part.first, span.part.stop) if i not in model.attention_layers
        ]
        # By the model's layer numbers; None where the layer is not of the span.
        self._caches: list[Any] = [pages.layers.get(i) for i in range(span.part.stop)]
        self._state_at: dict[int, int | None] = {}  # position of each recurrent layer's state; None: missing
        self._kept: dict[int, dict[int, State]] = {}  # by position, then layer; the newest last
        self._chunk = (0, 0)  # positions of the newest one
        self._rows_without_attention = 0
        self._empty_states()

    @property
    def rows(self) -> int:
        """Positions that have passed: rows stored at every attention layer."""
        return self.pages.tokens if self.pages.layers else self._rows_without_attention

    def known(self, keys: Sequence[bytes]) -> int:
        """How many leading ubatches of a sequence with these keys are here."""
        most = min(len(keys), len(self.keys), self.rows // self.span.ubatch_tokens)
        return next((i for i in range(most) if keys[i] != self.keys[i]), most)

    def open(self, keys: Sequence[bytes]) -> None:
        """Goes on with a sequence of these keys: rows and states that are not its own go."""
        self.rewind(self.known(keys) * self.span.ubatch_tokens)
        self.keys = list(keys)

    def states(self) -> tuple[int, ...]:
        """Positions, but 0, at which all recurrent states are here."""
        here = set(self._kept)
        if all(at == self.rows for at in self._state_at.values()):
            here.add(self.rows)
        return tuple(sorted(here - {0}))

    def rewind(self, position: int) -> None:
        """Cuts the rows to a position that they reach and sets the states to those kept there. Raises OutOfBudget."""
        self.pages.truncate(position)
        self._rows_without_attention = position
        self._kept = {at: states for at, states in self._kept.items() if at <= position}
        if all(at == position for at in self._state_at.values()):
            return
        self._empty_states()
        kept = self._kept.get(position)
        for layer in self._recurrent:
            if kept is not None:
                self._set_state(layer, position, kept[layer])
            elif position:
                self._state_at[layer] = None

    def put_rows(self, layer: int, position: int, k: Array, v: Array) -> None:
        """Appends rows of an attention layer. Raises BadRequest, OutOfBudget."""
        pages = self.pages.layers.get(layer)
        if pages is None:
            raise BadRequest(f"layer {layer} is not one of this tail's attention layers")
        g = self.span.geometry
        if k.shape[::2] != (g.kv_heads, g.head_dim) or k.dtype != STORAGE_DTYPES[g.dtype]:
            raise BadRequest(
                f"rows {k.dtype} {list(k.shape)} for {g.dtype} [{g.kv_heads}, rows, {g.head_dim}]"
            )
        if position != pages.offset:
            raise BadRequest(f"rows at {position} of layer {layer}, which has {pages.offset}")
        pages.append(k, v)

    def put_state(self, layer: int, position: int, conv: Array, recurrent: Array) -> None:
        """Sets one recurrent layer's state. Raises BadRequest."""
        if layer not in self._recurrent:
            raise BadRequest(f"layer {layer} is not one of this tail's recurrent layers")
        if (conv.shape, recurrent.shape) != self._model_shapes:
            raise BadRequest(f"a state {conv.shape}, {recurrent.shape} where {self._model_shapes} belong")
        # mlx-lm keeps the recurrent state in fp32 whatever the model's dtype is.
        if conv.dtype != numpy_dtype(self._dtype) or recurrent.dtype != np.float32:
            raise BadRequest(f"a state {conv.dtype}, {recurrent.dtype} of a model in {self._dtype}")
        self._set_state(layer, position, (from_numpy(conv, self._dtype), from_numpy(recurrent, mx.float32)))

    def run(
        self,
        model: HybridModel,
        position: int,
        residual: mx.array,
        wanted: frozenset[int],
        left: Callable[[int], None],
    ) -> mx.array:
        """Runs a residual [1, T, hidden] at `position` through the span; returns the new one, not yet evaluated.

        After each `wanted` layer its state is evaluated and `left` called with its number.
        Raises BadRequest, OutOfBudget.
        """
        self._check_all_at(position)
        end = position + residual.shape[1]
        self._chunk = (position, end)
        for layer in range(self.span.part.first, self.span.part.stop):
            residual = model.run_layers(residual, self._caches, layer, layer + 1)
            if layer in self._state_at:
                self._state_at[layer] = end
                if layer in wanted:
                    mx.eval(self._caches[layer].cache)
            if layer in wanted:
                left(layer)
        self._rows_without_attention = end
        mx.eval([self._caches[layer].cache for layer in self._recurrent])
        return residual

    def name_chunk(self, key: bytes | None) -> None:
        """Says how the newest chunk's end is called; without a name, the mirror cannot be found beyond its start."""
        start, end = self._chunk
        size = self.span.ubatch_tokens
        del self.keys[start // size :]
        if key is not None and end == (len(self.keys) + 1) * size:
            self.keys.append(key)

    def keep(self) -> None:
        """Remembers the states as they are; MLX arrays never change, so these are references."""
        _, end = self._chunk
        self._kept.pop(end, None)
        self._kept[end] = {layer: self._state(layer) for layer in self._recurrent}
        while len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]

    def left_at(self, layer: int, position: int) -> tuple[Array, Array]:
        """What `GetState` asks for, of a position that has been reached. Raises BadRequest."""
        if layer in self.pages.layers:
            start, end = self._chunk
            if position == end and start < end <= self.pages.layers[layer].offset:
                return self.pages.rows(layer, start, end)
        elif self._state_at.get(layer) == position and position:
            conv, recurrent = self._state(layer)
            return to_numpy(conv), to_numpy(recurrent)
        elif layer in self._recurrent and position in self._kept:
            conv, recurrent = self._kept[position][layer]
            return to_numpy(conv), to_numpy(recurrent)
        raise BadRequest(f"what layer {layer} left at position {position} is not here")

    def release(self) -> None:
        """Gives all memory back; named pages stay with the store as a cache."""
        self.pages.truncate(0)
        self._kept = {}
        self._empty_states()

    def _check_all_at(self, position: int) -> None:
        for number, pages in self.pages.layers.items():
            if pages.offset != position:
                raise BadRequest(
                    f"a chunk at {position}, and {pages.offset} rows are stored at layer {number}"
                )
        for number, at in self._state_at.items():
            if at != position:
                where = "is missing" if at is None else f"is that of {at}"
                raise BadRequest(f"a chunk at {position}, and the state of layer {number} {where}")

    def _empty_states(self) -> None:
        for layer in self._recurrent:
            self._caches[layer] = self._new_state()
            self._state_at[layer] = 0

    def _state(self, layer: int) -> State:
        conv, recurrent = self._caches[layer].cache
        return conv, recurrent

    def _set_state(self, layer: int, position: int, state: State) -> None:
        cache = self._new_state()
        cache[0], cache[1] = state
        self._caches[layer] = cache
        self._state_at[layer] = position


def leave_thread() -> None:
    """The last call of a thread that has run mirrors: MLX's streams belong to it and would outlive it."""
    mx.clear_streams()
