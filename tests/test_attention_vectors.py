"""The golden partials that the Swift worker is held to are what the engines here give."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backburner.attention.engine import Geometry, Partial
from backburner.attention.merge import merge
from backburner.attention.numpy_engine import STORAGE_DTYPES
from backburner.attention.select import make_engine
from scripts import make_attention_vectors
from scripts.vector_files import from_json
from tests.host import ENGINES

INDEX: dict[str, Any] = json.loads(
    (Path(__file__).parent / "vectors" / "attention" / "index.json").read_text()
)


def partial(case: dict[str, Any]) -> Partial:
    return Partial(o=from_json(case["o"]), lse=from_json(case["lse"]))


def check(found: Partial, wanted: Partial) -> None:
    for part, tolerance in INDEX["tolerances"].items():
        ours, theirs = (np.asarray(getattr(x, part), np.float64) for x in (found, wanted))
        assert (np.abs(ours - theirs) <= tolerance * np.maximum(1, np.abs(theirs))).all(), part


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", INDEX["attention"], ids=lambda case: case["name"])
def test_each_engine_gives_these_partials(engine: str, case: dict[str, Any]) -> None:
    geometry = Geometry(
        *(case[n] for n in ("q_heads", "kv_heads", "head_dim", "page_tokens", "dtype", "scale"))
    )
    attention = make_engine(engine)
    pages = []
    for page in case["pages"]:
        pages.append(attention.new_page(geometry))
        attention.append(pages[-1], *(from_json(page[x]).astype(STORAGE_DTYPES[case["dtype"]]) for x in "kv"))
    found = attention.attend(geometry, from_json(case["q"]).astype(np.float32), pages)
    for one, page in zip(found, case["pages"], strict=True):
        check(one, partial(page))
    check(attention.fold(found), partial(case["all"]))


@pytest.mark.parametrize("case", INDEX["merge"], ids=lambda case: case["name"])
def test_partials_merge_like_this(case: dict[str, Any]) -> None:
    found, wanted = merge(partial(case["a"]), partial(case["b"])), partial(case["merged"])
    check_bits = np.testing.assert_array_equal
    if case["exact"]:
        check_bits(found.o.view(np.uint32), wanted.o.view(np.uint32))
        check_bits(found.lse.view(np.uint32), wanted.lse.view(np.uint32))
    else:
        check(found, wanted)


def test_the_script_makes_these_files() -> None:
    """But for the last bits, which are those of a platform's exp."""
    (made,) = make_attention_vectors.files().values()
    anew = json.loads(made)
    assert [c["name"] for c in anew["attention"]] == [c["name"] for c in INDEX["attention"]]
    for ours, theirs in zip(anew["attention"], INDEX["attention"], strict=True):
        assert ours["q"] == theirs["q"]
        assert [(p["k"], p["v"]) for p in ours["pages"]] == [(p["k"], p["v"]) for p in theirs["pages"]]
        check(partial(ours["all"]), partial(theirs["all"]))
