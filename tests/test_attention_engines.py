"""Every attention engine against a plain float64 oracle, and the promises of the engine protocol."""

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backburner.attention import folded as folded_module
from backburner.attention.engine import Geometry, Partial
from backburner.attention.folded import attend_folded
from backburner.attention.select import ENGINE_NAMES, make_engine
from backburner.errors import ConfigError
from backburner.native.kernels import load_kernels, why_missing
from backburner.native.library import ISA_VARIABLE

DTYPES = ("float32", "float16", "bfloat16")


def engine_or_skip(name: str) -> Any:
    if name == "native" and load_kernels() is None:
        pytest.skip(f"native engine: {why_missing()}")
    return make_engine(name)


@pytest.fixture(params=["numpy", "native", "mlx"])
def engine(request: pytest.FixtureRequest) -> Any:
    return engine_or_skip(request.param)


def geometry_of(
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    page_tokens: int,
    dtype: str = "float32",
    scale: float | None = None,
) -> Geometry:
    return Geometry(q_heads, kv_heads, head_dim, page_tokens, dtype, scale or head_dim**-0.5)


def stored(x: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return x.astype(dtype)


def as_float64(x: np.ndarray) -> np.ndarray:
    if x.dtype == np.uint16:
        x = (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float64)


def random_rows(rng: np.random.Generator, geometry: Geometry, rows: int) -> tuple[np.ndarray, np.ndarray]:
    shape = (geometry.kv_heads, rows, geometry.head_dim)
    return stored(rng.normal(size=shape), geometry.dtype), stored(rng.normal(size=shape), geometry.dtype)


def random_q(rng: np.random.Generator, geometry: Geometry, tokens: int) -> np.ndarray:
    return rng.normal(size=(geometry.q_heads, tokens, geometry.head_dim)).astype(np.float32)


def oracle(
    geometry: Geometry, q: np.ndarray, k: np.ndarray, v: np.ndarray, first_visible: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """One head and one query at a time, in float64."""
    q_heads, tokens, head_dim = q.shape
    rows = k.shape[1]
    o = np.zeros((q_heads, tokens, head_dim))
    lse = np.full((q_heads, tokens), -np.inf)
    for head in range(q_heads):
        kv_head = head // (geometry.q_heads // geometry.kv_heads)
        for t in range(tokens):
            seen = rows if first_visible is None else min(max(first_visible + t, 0), rows)
            if seen == 0:
                continue
            s = as_float64(k[kv_head, :seen]) @ q[head, t].astype(np.float64) * geometry.scale
            weights = np.exp(s - s.max())
            o[head, t] = weights @ as_float64(v[kv_head, :seen]) / weights.sum()
            lse[head, t] = s.max() + np.log(weights.sum())
    return o, lse


def assert_close(partial: Partial, o: np.ndarray, lse: np.ndarray) -> None:
    assert partial.o.dtype == np.float32
    assert partial.lse.dtype == np.float32
    assert partial.o.shape == o.shape
    assert partial.lse.shape == lse.shape
    np.testing.assert_allclose(partial.o, o, rtol=0, atol=1e-5)
    np.testing.assert_allclose(partial.lse, lse, rtol=1e-6, atol=1e-5)


def assert_same_bits(a: Partial, b: Partial) -> None:
    assert a.o.tobytes() == b.o.tobytes()
    assert a.lse.tobytes() == b.lse.tobytes()


def check_against_oracle(
    engine: Any, geometry: Geometry, tokens: int, fills: list[int], first_visible: list[int] | None
) -> None:
    rng = np.random.default_rng(tokens + sum(fills))
    pages, content = [], []
    for fill in fills:
        page = engine.new_page(geometry)
        k, v = random_rows(rng, geometry, fill)
        engine.append(page, k, v)
        pages.append(page)
        content.append((k, v))
    q = random_q(rng, geometry, tokens)
    partials = engine.attend(geometry, q, pages, first_visible)
    assert len(partials) == len(pages)
    for p, (k, v) in enumerate(content):
        assert_close(partials[p], *oracle(geometry, q, k, v, first_visible[p] if first_visible else None))


# q_heads, kv_heads, head_dim, page_tokens, tokens, fills, first_visible
CASES: dict[str, tuple[int, int, int, int, int, list[int], list[int] | None]] = {
    "one query, full pages": (12, 2, 256, 512, 1, [512, 512], None),
    "one query, part of a page": (6, 1, 128, 512, 1, [300], None),
    "an empty page among others": (4, 2, 64, 128, 2, [128, 0, 5], None),
    "no sharing of kv heads": (3, 3, 64, 100, 1, [77], None),
    "eight queries share a kv head": (8, 1, 64, 320, 1, [320], None),
    "odd head_dim 80": (4, 2, 80, 300, 7, [300, 299], [290, 300]),
    "odd head_dim 72": (4, 2, 72, 65, 5, [65], [0]),
    "odd head_dim 20": (2, 1, 20, 33, 2, [31], None),
    "tiny pages of 3": (2, 1, 64, 3, 7, [3, 3, 2], [3, 0, -3]),
    "causal edge inside a block": (4, 2, 64, 700, 7, [700], [695]),
    "edge at zero": (4, 2, 64, 512, 7, [512], [0]),
    "edge below zero": (4, 2, 64, 512, 7, [512], [-5]),
    "nothing visible at all": (4, 2, 64, 512, 2, [512], [-9]),
    "edge beyond the fill": (4, 2, 64, 512, 2, [10], [400]),
    "prefill": (4, 2, 64, 512, 256, [512, 256], [512, 1]),
    "prefill, heads of 256, group of six": (6, 1, 256, 300, 256, [300], [20]),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_engine_equals_the_oracle(engine: Any, case: tuple[Any, ...], dtype: str) -> None:
    q_heads, kv_heads, head_dim, page_tokens, tokens, fills, first_visible = case
    geometry = geometry_of(q_heads, kv_heads, head_dim, page_tokens, dtype)
    check_against_oracle(engine, geometry, tokens, fills, first_visible)


@settings(max_examples=60, deadline=None)
@given(
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 9),
    head_dim=st.sampled_from([1, 16, 48, 64, 80, 96, 128, 136]),
    page_tokens=st.integers(1, 600),
    tokens=st.integers(1, 9),
    dtype=st.sampled_from(DTYPES),
    data=st.data(),
)
def test_native_engine_equals_the_oracle_on_any_geometry(
    kv_heads: int, group: int, head_dim: int, page_tokens: int, tokens: int, dtype: str, data: st.DataObject
) -> None:
    engine = engine_or_skip("native")
    geometry = geometry_of(kv_heads * group, kv_heads, head_dim, page_tokens, dtype)
    fill = data.draw(st.integers(0, page_tokens))
    first_visible = data.draw(
        st.none() | st.lists(st.integers(-10, page_tokens + 10), min_size=1, max_size=1)
    )
    check_against_oracle(engine, geometry, tokens, [fill], first_visible)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_come_back_bit_for_bit(engine: Any, dtype: str) -> None:
    geometry = geometry_of(4, 2, 80, 300, dtype)
    rng = np.random.default_rng(1)
    shape = (2, 300, 80)
    if dtype == "float32":
        bits = rng.integers(0, 2**32, size=(2, *shape), dtype=np.uint32).view(np.float32)
    else:
        bits = rng.integers(0, 2**16, size=(2, *shape), dtype=np.uint16)
        bits = bits.view(np.float16) if dtype == "float16" else bits
    k, v = bits
    page = engine.new_page(geometry)
    for start, stop in ((0, 1), (1, 70), (70, 257), (257, 300)):
        engine.append(page, k[:, start:stop], v[:, start:stop])
    for start, stop in ((0, 300), (63, 65), (100, 100), (256, 299)):
        got_k, got_v = engine.rows(page, start, stop)
        assert got_k.flags.c_contiguous
        assert got_v.flags.c_contiguous
        assert got_k.dtype == k.dtype
        assert got_k.tobytes() == np.ascontiguousarray(k[:, start:stop]).tobytes()
        assert got_v.tobytes() == np.ascontiguousarray(v[:, start:stop]).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 9])
def test_appending_one_by_one_equals_appending_in_one_go(engine: Any, dtype: str, tokens: int) -> None:
    geometry = geometry_of(4, 2, 80, 140, dtype)
    rng = np.random.default_rng(2)
    k, v = random_rows(rng, geometry, 131)
    one_go, one_by_one = engine.new_page(geometry), engine.new_page(geometry)
    engine.append(one_go, k, v)
    for row in range(131):
        engine.append(one_by_one, k[:, row : row + 1], v[:, row : row + 1])
    assert one_by_one.filled == one_go.filled == 131
    q = random_q(rng, geometry, tokens)
    assert_same_bits(*engine.attend(geometry, q, [one_go, one_by_one]))


def test_pages_folded_equal_one_whole_page(engine: Any) -> None:
    whole, part = geometry_of(6, 2, 64, 600), geometry_of(6, 2, 64, 97)
    rng = np.random.default_rng(3)
    k, v = random_rows(rng, whole, 600)
    q = random_q(rng, whole, 7)
    big = engine.new_page(whole)
    engine.append(big, k, v)
    pages, edges = [], []
    for start in range(0, 600, 97):
        page = engine.new_page(part)
        engine.append(page, k[:, start : start + 97], v[:, start : start + 97])
        pages.append(page)
        edges.append(594 - start)
    folded = engine.fold(engine.attend(part, q, pages, edges))
    (expected,) = engine.attend(whole, q, [big], [594])
    assert_close(folded, expected.o.astype(np.float64), expected.lse.astype(np.float64))


def test_folding_a_prefix_first_gives_the_same_bits(engine: Any) -> None:
    geometry = geometry_of(4, 2, 64, 50)
    rng = np.random.default_rng(4)
    pages = []
    for _ in range(5):
        page = engine.new_page(geometry)
        engine.append(page, *random_rows(rng, geometry, 50))
        pages.append(page)
    partials = engine.attend(geometry, random_q(rng, geometry, 3), pages)
    whole = engine.fold(partials)
    for cut in range(1, 5):
        assert_same_bits(engine.fold([engine.fold(partials[:cut]), *partials[cut:]]), whole)


@pytest.mark.parametrize("count", [1, 2, 5, 7])
def test_folding_in_groups_gives_the_bits_of_one_fold(
    engine: Any, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    geometry = geometry_of(4, 2, 64, 50)
    rng = np.random.default_rng(11)
    pages = []
    for _ in range(1 + count):
        page = engine.new_page(geometry)
        engine.append(page, *random_rows(rng, geometry, 50))
        pages.append(page)
    q = random_q(rng, geometry, 3)
    edges = [50] * count + [48]
    whole = engine.attend(geometry, q, pages, edges)
    events: list[Any] = []
    attend = engine.attend

    def counted(geometry: Geometry, q: Any, pages: Any, first_visible: Any = None) -> list[Partial]:
        events.append(len(pages))
        partials: list[Partial] = attend(geometry, q, pages, first_visible)
        return partials

    def before() -> Partial:
        events.append("before")
        return whole[0]

    monkeypatch.setattr(engine, "attend", counted)
    monkeypatch.setattr(folded_module, "GROUP_BYTES", 2 * whole[0].o.nbytes)
    assert_same_bits(attend_folded(engine, geometry, q, pages, edges), engine.fold(whole))
    assert max(events) <= 2, "more partials at once than the bound admits"
    events.clear()
    assert_same_bits(attend_folded(engine, geometry, q, pages[1:], edges[1:], before), engine.fold(whole))
    assert events.index("before") == 1, "the first group is computed while the answer is on its way"
    assert events.count("before") == 1


def test_folding_nothing_after_a_partial_gives_that_partial(engine: Any) -> None:
    geometry = geometry_of(2, 1, 64, 20)
    q = np.zeros((2, 1, 64), np.float32)
    page = engine.new_page(geometry)
    engine.append(page, *random_rows(np.random.default_rng(12), geometry, 20))
    (partial,) = engine.attend(geometry, q, [page])
    assert_same_bits(attend_folded(engine, geometry, q, [], [], lambda: partial), partial)
    with pytest.raises(ValueError, match="causal edges"):
        attend_folded(engine, geometry, q, [page], [1, 2])


@pytest.mark.parametrize("name", ["native", "numpy"])
def test_huge_logits_give_no_nan(name: str) -> None:
    engine = engine_or_skip(name)
    geometry = geometry_of(2, 1, 64, 300, scale=1.0)
    rng = np.random.default_rng(5)
    _, v = random_rows(rng, geometry, 300)
    k = np.zeros((1, 300, 64), np.float32)
    k[0, :, 0] = np.resize([0, 1e30, -1e30, 3e38, -3e38], 300)
    page = engine.new_page(geometry)
    engine.append(page, k, v)
    for size in (1.0, -1.0, 1e30, 1e-30):
        q = np.full((2, 4, 64), 0, np.float32)
        q[..., 0] = size
        (partial,) = engine.attend(geometry, q, [page], [1])
        assert np.isfinite(partial.o).all()
        assert np.isfinite(partial.lse).all()
        s = np.clip(np.float64(size) * k[0, :4, 0].astype(np.float64), -3.4028235e38, 3.4028235e38)
        for t in range(4):
            weights = np.exp(s[: t + 1] - s[: t + 1].max())
            expected = weights @ v[0, : t + 1].astype(np.float64) / weights.sum()
            np.testing.assert_allclose(partial.o[0, t], expected, atol=1e-5)


@pytest.mark.parametrize("name", ["native", "numpy"])
def test_a_nan_in_a_visible_key_is_not_hidden(name: str) -> None:
    engine = engine_or_skip(name)
    geometry = geometry_of(1, 1, 64, 100)
    rng = np.random.default_rng(6)
    k, v = random_rows(rng, geometry, 100)
    k[0, 7, 3] = np.nan
    page = engine.new_page(geometry)
    engine.append(page, k, v)
    (partial,) = engine.attend(geometry, random_q(rng, geometry, 3), [page], [6])
    assert np.isfinite(partial.o[0, :2]).all()
    assert np.isnan(partial.o[0, 2]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_native_bits_of_a_query_do_not_depend_on_its_neighbours(dtype: str) -> None:
    engine = engine_or_skip("native")
    geometry = geometry_of(4, 2, 80, 600, dtype)
    rng = np.random.default_rng(7)
    page = engine.new_page(geometry)
    engine.append(page, *random_rows(rng, geometry, 600))
    q = random_q(rng, geometry, 40)
    (together,) = engine.attend(geometry, q, [page], [500])
    for t in range(0, 40, 3):
        (alone,) = engine.attend(geometry, q[:, t : t + 1], [page], [500 + t])
        assert_same_bits(alone, Partial(o=together.o[:, t : t + 1], lse=together.lse[:, t : t + 1]))


def test_native_bits_do_not_depend_on_where_a_buffer_lies() -> None:
    engine = engine_or_skip("native")
    geometry = geometry_of(6, 1, 128, 300, "float16")
    rng = np.random.default_rng(8)
    page = engine.new_page(geometry)
    engine.append(page, *random_rows(rng, geometry, 300))
    q = random_q(rng, geometry, 5)
    (expected,) = engine.attend(geometry, q, [page])
    for offset in (4, 12, 36):
        room = np.zeros(page.data.size + 64, np.uint8)
        moved = engine.new_page(geometry)
        moved.data = room[offset : offset + page.data.size]
        moved.data[:] = page.data
        moved.address = moved.data.ctypes.data
        moved.filled = page.filled
        q_room = np.zeros(q.size + 16, np.float32)
        q_moved = q_room[offset // 4 : offset // 4 + q.size].reshape(q.shape)
        q_moved[:] = q
        assert_same_bits(engine.attend(geometry, q_moved, [moved])[0], expected)


def test_engines_agree() -> None:
    geometry = geometry_of(12, 2, 128, 512, "bfloat16")
    rng = np.random.default_rng(9)
    k, v = random_rows(rng, geometry, 500)
    q = random_q(rng, geometry, 7)
    results = []
    for name in ("numpy", "mlx", *(["native"] if load_kernels() else [])):
        engine = make_engine(name)
        page = engine.new_page(geometry)
        engine.append(page, k, v)
        results += engine.attend(geometry, q, [page], [495])
    for partial in results[1:]:
        assert_close(partial, results[0].o.astype(np.float64), results[0].lse.astype(np.float64))


def test_causal_edges_may_be_numpy_integers(engine: Any) -> None:
    geometry = geometry_of(2, 1, 64, 20)
    rng = np.random.default_rng(10)
    page = engine.new_page(geometry)
    engine.append(page, *random_rows(rng, geometry, 20))
    q = random_q(rng, geometry, 2)
    assert_same_bits(
        *engine.attend(geometry, q, [page], np.array([7])), *engine.attend(geometry, q, [page], [7])
    )


def test_no_pages_give_no_partials(engine: Any) -> None:
    assert engine.attend(geometry_of(2, 1, 64, 20), np.zeros((2, 1, 64), np.float32), []) == []


def test_wrong_shapes_are_refused_before_memory_is_touched(engine: Any) -> None:
    geometry = geometry_of(4, 2, 64, 10)
    page = engine.new_page(geometry)
    rows = np.zeros((2, 11, 64), np.float32)
    with pytest.raises(ValueError, match="do not fit"):
        engine.append(page, rows, rows)
    with pytest.raises(ValueError, match="append wants"):
        engine.append(page, rows[:1, :5], rows[:1, :5])
    with pytest.raises(ValueError, match="append wants"):
        engine.append(page, rows[:, :5].astype(np.float16), rows[:, :5].astype(np.float16))
    with pytest.raises(ValueError, match="filled"):
        engine.rows(page, 0, 1)
    with pytest.raises(ValueError, match="attend wants"):
        engine.attend(geometry, np.zeros((4, 1, 63), np.float32), [page])
    with pytest.raises(ValueError, match="causal edges"):
        engine.attend(geometry, np.zeros((4, 1, 64), np.float32), [page], [1, 2])
    with pytest.raises(ValueError, match="another geometry"):
        engine.attend(geometry_of(4, 2, 64, 11), np.zeros((4, 1, 64), np.float32), [page])
    assert page.filled == 0


def test_an_unknown_engine_is_named_with_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"fastest.*native, numpy, mlx"):
        make_engine("fastest")
    assert all(make_engine(name).name in ENGINE_NAMES for name in ("auto", "numpy", "mlx"))


def test_a_missing_build_says_how_to_get_it() -> None:
    code = (
        "from backburner.attention.select import make_engine\n"
        "from backburner.errors import ConfigError\n"
        "assert make_engine('auto').name in ('numpy', 'mlx')\n"
        "try:\n    make_engine('native')\n"
        "except ConfigError as error:\n    print(error)\n"
    )
    run = run_python(code, {ISA_VARIABLE: "no-such-instruction-set"})
    assert "C compiler" in run


def test_auto_does_not_import_mlx_without_a_gpu() -> None:
    if sys.platform == "darwin":
        pytest.skip("on macOS MLX has to be asked for Metal")
    code = (
        "import sys\nfrom backburner.attention.select import make_engine\n"
        "name = make_engine('auto').name\nprint(name == 'mlx' or 'mlx' not in sys.modules)"
    )
    assert run_python(code, {}).strip() == "True"


def run_python(code: str, variables: dict[str, str]) -> str:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        cwd=os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    ).stdout


VARIANT_CHECK = """
import json, sys
sys.path.insert(0, "tests")
import test_attention_engines as t
from backburner.attention.select import make_engine
from backburner.native.kernels import load_kernels, why_missing
kernels = load_kernels()
if kernels is None:
    print(json.dumps({"isa": None, "why": why_missing()}))
    sys.exit()
engine = make_engine("native")
for case in t.CASES.values():
    for dtype in t.DTYPES:
        t.check_against_oracle(engine, t.geometry_of(*case[:4], dtype), *case[4:])
for dtype in t.DTYPES:
    t.test_appending_one_by_one_equals_appending_in_one_go(engine, dtype, 9)
    t.test_rows_come_back_bit_for_bit(engine, dtype)
    t.test_native_bits_of_a_query_do_not_depend_on_its_neighbours(dtype)
t.test_native_bits_do_not_depend_on_where_a_buffer_lies()
t.test_huge_logits_give_no_nan("native")
t.test_a_nan_in_a_visible_key_is_not_hidden("native")
t.check_every_float16(engine)
print(json.dumps({"isa": kernels.isa}))
"""


@pytest.mark.parametrize("isa", ["generic", "avx2", "avx512"])
def test_every_instruction_set_of_this_machine_is_right(isa: str) -> None:
    engine_or_skip("native")
    result = json.loads(run_python(VARIANT_CHECK, {ISA_VARIABLE: isa}))
    if result["isa"] is None:
        pytest.skip(f"{isa}: {result['why']}")
    assert result["isa"] == isa


def check_every_float16(engine: Any) -> None:
    """A page with one row per finite 16-bit value: attending to that row alone returns the value itself."""
    bits = np.arange(2**16, dtype=np.uint16)
    for dtype, values in (("float16", bits.view(np.float16)), ("bfloat16", bits)):
        exact = as_float64(values).astype(np.float32)
        values, exact = values[np.isfinite(exact)], exact[np.isfinite(exact)]
        count = values.size // 64 * 64
        v = np.ascontiguousarray(values[:count].reshape(1, -1, 64))
        expected = exact[:count].reshape(-1, 64)
        geometry = geometry_of(1, 1, 64, 1, dtype)
        pages = []
        for row in range(v.shape[1]):
            page = engine.new_page(geometry)
            engine.append(page, np.zeros_like(v[:, :1]), v[:, row : row + 1])
            pages.append(page)
        partials = engine.attend(geometry, np.zeros((1, 1, 64), np.float32), pages)
        assert np.array_equal(np.stack([p.o[0, 0] for p in partials]), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fill", [0, 131, 140])
def test_a_page_over_read_only_storage_gives_the_same_bits(engine: Any, dtype: str, fill: int) -> None:
    geometry = geometry_of(4, 2, 80, 140, dtype)
    rng = np.random.default_rng(13)
    page = engine.new_page(geometry)
    k, v = random_rows(rng, geometry, fill)
    engine.append(page, k, v)
    arrays = engine.storage(page)
    assert sum(a.nbytes for a in arrays) == engine.page_bytes(geometry)
    read_only = [np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape) for a in arrays]
    assert not any(a.flags.writeable for a in read_only)
    again = engine.page_over(geometry, read_only, fill)
    assert again.filled == fill
    for tokens in (1, 9):
        q = random_q(rng, geometry, tokens)
        for edges in (None, [fill - tokens + 1]):
            assert_same_bits(
                *engine.attend(geometry, q, [again], edges), *engine.attend(geometry, q, [page], edges)
            )
    got_k, got_v = engine.rows(again, 0, fill)
    assert got_k.tobytes() == k.tobytes()
    assert got_v.tobytes() == v.tobytes()


def test_storage_is_the_pages_own_memory(engine: Any) -> None:
    geometry = geometry_of(2, 1, 64, 20, "bfloat16")
    page = engine.new_page(geometry)
    engine.append(page, *random_rows(np.random.default_rng(14), geometry, 20))
    for a, b in zip(engine.storage(page), engine.storage(page), strict=True):
        assert np.shares_memory(a, b)


def test_a_page_over_arrays_that_do_not_fit_is_refused(engine: Any) -> None:
    geometry = geometry_of(4, 2, 64, 10)
    arrays = engine.storage(engine.new_page(geometry))
    with pytest.raises(ValueError, match="page_over wants arrays"):
        engine.page_over(geometry_of(4, 2, 64, 300), arrays, 10)
    with pytest.raises(ValueError, match="page_over wants arrays"):
        engine.page_over(geometry, arrays * 2, 10)
    with pytest.raises(ValueError, match="page_over wants arrays"):
        engine.page_over(geometry, [a.astype(np.int64) for a in arrays], 10)
    with pytest.raises(ValueError, match="contiguous"):
        engine.page_over(geometry, [np.repeat(a, 2, axis=-1)[..., ::2] for a in arrays], 10)
    with pytest.raises(ValueError, match="rows are not within"):
        engine.page_over(geometry, arrays, 11)
