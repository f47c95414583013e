"""What every engine checks of its arguments: shapes and ranges, before any memory is touched."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from backburner.attention.engine import Geometry


def check_append(
    geometry: Geometry, filled: int, k: npt.NDArray[Any], v: npt.NDArray[Any], dtype: np.dtype[Any]
) -> None:
    """k and v must be [kv_heads, rows, head_dim] in the storage dtype, and the rows must fit."""
    if (
        k.ndim != 3
        or k.shape != v.shape
        or (k.shape[0], k.shape[2]) != (geometry.kv_heads, geometry.head_dim)
    ):
        raise ValueError(
            f"append wants k and v of [{geometry.kv_heads}, rows, {geometry.head_dim}], "
            f"got {k.shape} and {v.shape}"
        )
    if k.dtype != dtype or v.dtype != dtype:
        raise ValueError(f"append wants {dtype} for {geometry.dtype} pages, got {k.dtype} and {v.dtype}")
    if filled + k.shape[1] > geometry.page_tokens:
        raise ValueError(f"{k.shape[1]} rows do not fit: {filled} of {geometry.page_tokens} are filled")


def check_rows(filled: int, start: int, stop: int) -> None:
    if not 0 <= start <= stop <= filled:
        raise ValueError(f"rows [{start}, {stop}) are not within the {filled} filled rows")


def check_page_over(
    geometry: Geometry,
    arrays: Sequence[npt.NDArray[Any]],
    filled: int,
    shapes: Sequence[tuple[int, ...]],
    dtype: np.dtype[Any],
) -> None:
    """The arrays must be contiguous, of these shapes and this dtype: kernels read them without a further look."""
    if [a.shape for a in arrays] != list(shapes) or any(a.dtype != dtype for a in arrays):
        raise ValueError(
            f"page_over wants arrays of {list(shapes)} in {dtype}, got {[(a.shape, str(a.dtype)) for a in arrays]}"
        )
    if not all(a.flags.c_contiguous for a in arrays):
        raise ValueError("page_over wants contiguous arrays")
    if not 0 <= filled <= geometry.page_tokens:
        raise ValueError(f"{filled} rows are not within the {geometry.page_tokens} of a page")


def check_attend(
    geometry: Geometry, q: npt.NDArray[Any], pages: Sequence[Any], first_visible: Sequence[int] | None
) -> None:
    if q.ndim != 3 or (q.shape[0], q.shape[2]) != (geometry.q_heads, geometry.head_dim):
        raise ValueError(f"attend wants q of [{geometry.q_heads}, T, {geometry.head_dim}], got {q.shape}")
    if geometry.q_heads % geometry.kv_heads:
        raise ValueError(f"{geometry.q_heads} query heads do not divide over {geometry.kv_heads} kv heads")
    for page in pages:
        if page.geometry is not geometry and page.geometry != geometry:
            raise ValueError(f"a page of another geometry: {page.geometry}, attended to as {geometry}")
    if first_visible is not None and len(first_visible) != len(pages):
        raise ValueError(f"{len(first_visible)} causal edges for {len(pages)} pages")


def visible_rows(filled: int, tokens: int, first_visible: int | None) -> npt.NDArray[np.int64]:
    """How many rows of a page each of `tokens` queries sees: [T]."""
    if first_visible is None:
        return np.full(tokens, filled, np.int64)
    return np.clip(first_visible + np.arange(tokens, dtype=np.int64), 0, filled)
