"""The engine protocol: how K/V rows are stored and attended to, whatever computes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Geometry:
    """The shape of one attention layer's pages. Equal on both sides of a link."""

    q_heads: int
    kv_heads: int
    head_dim: int
    page_tokens: int
    dtype: str  # of stored K and V: "float32" | "float16" | "bfloat16" (as uint16 bits in numpy)
    scale: float  # the softmax scale, head_dim ** -0.5 unless the model says otherwise

    @property
    def row_bytes(self) -> int:
        """Bytes of one position's K and V."""
        return 2 * self.kv_heads * self.head_dim * (4 if self.dtype == "float32" else 2)

    @property
    def page_bytes(self) -> int:
        return self.row_bytes * self.page_tokens


@dataclass(frozen=True, slots=True)
class Partial:
    """Attention of one query block over some keys: the normalised output and the log of the softmax sum.

    An empty key set gives o = 0 and lse = -inf.
    """

    o: F32  # [q_heads, T, head_dim]
    lse: F32  # [q_heads, T]


class Page(Protocol):
    """One page of one layer, in the engine's own layout. Rows [0, filled) are valid."""

    filled: int


class AttentionEngine(Protocol):
    """Stores pages and attends to them. Engines hold no page state of their own; any thread may call."""

    name: str

    def page_bytes(self, geometry: Geometry) -> int:
        """The memory that one page takes in this engine's layout, at least geometry.page_bytes."""
        ...

    def new_page(self, geometry: Geometry) -> Any:
        """An empty page with room for geometry.page_tokens rows."""
        ...

    def append(self, page: Any, k: npt.NDArray[Any], v: npt.NDArray[Any]) -> None:
        """Adds rows at page.filled. k, v: [kv_heads, rows, head_dim] in the geometry's dtype."""
        ...

    def rows(self, page: Any, start: int, stop: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Rows [start, stop) as k, v: [kv_heads, rows, head_dim], contiguous, bit for bit as appended."""
        ...

    def storage(self, page: Any) -> tuple[npt.NDArray[Any], ...]:
        """The arrays that hold a page, in this engine's layout; bfloat16 as uint16 bits. All of them together are
        page_bytes.

        They are the page's own memory where that is possible: nobody may append to it while they are in use.
        """
        ...

    def page_over(self, geometry: Geometry, arrays: Sequence[npt.NDArray[Any]], filled: int) -> Any:
        """A page over what `storage` of an engine of this name gave; attending to it gives the same bits.

        Nothing may be appended to it: the arrays may be read-only, such as mapped files. Engines that compute on
        mapped memory do not copy; mlx does, so its page takes memory of its own.
        """
        ...

    def attend(
        self, geometry: Geometry, q: F32, pages: Sequence[Any], first_visible: Sequence[int] | None = None
    ) -> list[Partial]:
        """One partial for each page, in order. q: [q_heads, T, head_dim], unscaled, fp32.

        `first_visible[p]` is how many rows of page p query 0 may see; query t sees t more (the causal edge);
        None means that every query sees every filled row.
        """
        ...

    def fold(self, partials: Sequence[Partial]) -> Partial:
        """All partials as one: the strict left fold in page order, ((p0 + p1) + p2) + ...

        So whoever folds a prefix and whoever goes on from it get the bits of one fold over everything.
        """
        ...

    def leave_thread(self) -> None:
        """Frees what belongs to the calling thread. The last call of a thread that has used the engine and ends."""
        ...
