"""The recurrent layer in C against the definition in float64 and against mlx-lm's own layers."""

import ctypes
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.cache import ArraysCache
from mlx_lm.models.qwen3_5 import GatedDeltaNet, TextModelArgs
from mlx_lm.models.qwen3_next import ModelArgs, Qwen3NextGatedDeltaNet

from backburner.model import recurrent as module
from backburner.model.cpu import PerCallQuantizedLinear
from backburner.model.recurrent import NativeGatedDeltaNet, NativeQwen3NextGatedDeltaNet, use_native_recurrent
from backburner.native.library import ISA_VARIABLE
from backburner.native.recurrent import CLayer, load_recurrent, why_missing

if load_recurrent() is None:
    pytest.skip(f"the C part: {why_missing()}", allow_module_level=True)

TAPS = 4
EPS = 1e-6


@pytest.fixture(params=["generic", "avx2", "avx512"])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set that this machine has, and the one in use again afterwards."""
    kernel = load_recurrent()
    if kernel.library.bb_select_isa(request.param.encode()):
        pytest.skip(f"this machine has no {request.param}")
    yield request.param
    assert kernel.library.bb_select_isa(kernel.isa.encode()) == 0


# ---- the definition --------------------------------------------------------------------------------------------------


@dataclass
class Block:
    """A layer's parameters between its projections, and one call's inputs, all fp32."""

    k_heads: int
    v_heads: int
    dk: int
    dv: int
    conv: np.ndarray  # [taps, channels]
    a_log: np.ndarray
    dt_bias: np.ndarray
    norm: np.ndarray
    qkv: np.ndarray  # [T, channels]
    z: np.ndarray  # [T, v_heads * dv]
    b: np.ndarray  # [T, v_heads]
    a: np.ndarray
    rows: np.ndarray  # [taps - 1, channels], the convolution's
    state: np.ndarray  # [v_heads, dv, dk]

    @property
    def tokens(self) -> int:
        return len(self.qkv)


def block(
    tokens: int, *, cosine: float = 0.0, gate: str = "usual", k_heads: int = 2, group: int = 2, dk=64, dv=48
):
    r = np.random.default_rng(tokens)
    v_heads = k_heads * group
    keys, channels = k_heads * dk, 2 * k_heads * dk + v_heads * dv
    conv = r.standard_normal((TAPS, channels)) / 2
    qkv = r.standard_normal((tokens, channels))
    rows = r.standard_normal((TAPS - 1, channels))
    b = r.standard_normal((tokens, v_heads))
    a = 2 * r.standard_normal((tokens, v_heads))
    if cosine:
        conv[:, keys : 2 * keys] = np.array([0, 0, 0, 1])[:, None]
        # Far from zero silu is all but linear there, and the keys' angles are those of what goes in.
        base = 8 + 4 * r.standard_normal(keys)
        spread = np.linalg.norm(base) / np.sqrt(keys) * np.sqrt(1 / cosine - 1)
        qkv[:, keys : 2 * keys] = base + spread * r.standard_normal((tokens, keys))
        b[:] = np.log(0.95 / 0.05)
        a[:] = -60  # g is 1 to the last bit: nothing is forgotten
    if gate == "hard":
        a = r.choice([-100.0, 0.0, 3.0, 20.0, 300.0], a.shape)  # g from 1 to e^-4800, which is 0
    arrays = {
        "conv": conv,
        "a_log": np.log(r.uniform(0.1, 16, v_heads)),
        "dt_bias": r.standard_normal(v_heads),
        "norm": 1 + r.standard_normal(dv) / 10,
        "qkv": qkv,
        "z": r.standard_normal((tokens, v_heads * dv)),
        "b": b,
        "a": a,
        "rows": rows,
        "state": r.standard_normal((v_heads, dv, dk)),
    }
    return Block(k_heads, v_heads, dk, dv, **{n: x.astype(np.float32) for n, x in arrays.items()})


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -x))


def definition(x: Block) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Output [T, v_heads * dv], the state and the convolution's rows after the call, in float64."""
    p = {n: np.asarray(v, np.float64) for n, v in vars(x).items() if isinstance(v, np.ndarray)}
    T, group, keys = x.tokens, x.v_heads // x.k_heads, x.k_heads * x.dk
    padded = np.concatenate([p["rows"], p["qkv"]])
    c = sum(padded[i : i + T] * p["conv"][i] for i in range(TAPS))
    c = c * sigmoid(c)
    q, k = c[:, :keys].reshape(T, -1, x.dk), c[:, keys : 2 * keys].reshape(T, -1, x.dk)
    v = c[:, 2 * keys :].reshape(T, -1, x.dv)
    q, k = (y / np.sqrt((y * y).sum(-1, keepdims=True) + 1e-6) for y in (q, k))
    q, k = np.repeat(q / np.sqrt(x.dk), group, 1), np.repeat(k, group, 1)
    g = np.exp(-np.exp(p["a_log"]) * np.logaddexp(0, p["a"] + p["dt_bias"]))
    beta = sigmoid(p["b"])
    state, y = p["state"], np.empty((T, x.v_heads, x.dv))
    for t in range(T):
        state = state * g[t][:, None, None]
        write = beta[t][:, None] * (v[t] - np.einsum("hvk,hk->hv", state, k[t]))
        state = state + write[:, :, None] * k[t][:, None, :]
        y[t] = np.einsum("hvk,hk->hv", state, q[t])
    y = y / np.sqrt((y * y).mean(-1, keepdims=True) + EPS) * p["norm"]
    z = p["z"].reshape(y.shape)
    return (y * z * sigmoid(z)).reshape(T, -1), state, padded[-(TAPS - 1) :]


def run(x: Block, *, shift: int = 0, empty_rows: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same by the C part; `shift` floats off the alignment that numpy gives."""

    def moved(a: np.ndarray) -> np.ndarray:
        memory = np.empty(a.size + shift, np.float32)
        memory[shift:] = a.ravel()
        return memory[shift:].reshape(a.shape)

    conv, a_log, dt_bias, norm, qkv, z, b, a, rows, state = (
        moved(y) for y in (x.conv, x.a_log, x.dt_bias, x.norm, x.qkv, x.z, x.b, x.a, x.rows, x.state)
    )
    group, keys = x.v_heads // x.k_heads, x.k_heads * x.dk
    layer = CLayer(
        *(x.k_heads, x.v_heads, x.dk, x.dv, TAPS, EPS),
        *(y.ctypes.data for y in (conv, a_log, dt_bias, norm)),
        *(qkv.shape[1], keys, 2 * keys, x.dk, group * x.dv),
        *(z.shape[1], group * x.dv),
        *(x.v_heads, group),
    )
    rows_out = moved(np.empty_like(rows))
    load_recurrent().run(
        ctypes.pointer(layer),
        x.tokens,
        *(y.ctypes.data for y in (qkv, z, b, a)),
        None if empty_rows else rows.ctypes.data,
        rows_out.ctypes.data,
        state.ctypes.data,
    )
    return z, state, rows_out


def assert_close(got: np.ndarray, expected: np.ndarray, relative: float) -> None:
    """Everywhere within `relative` of the largest value."""
    assert np.isfinite(got).all()
    assert np.abs(got - expected).max() <= relative * max(1.0, np.abs(expected).max())


def part(x: Block, start: int, stop: int, state: np.ndarray, rows: np.ndarray) -> Block:
    tokens = {n: getattr(x, n)[start:stop] for n in ("qkv", "z", "b", "a")}
    return Block(**{**vars(x), **tokens, "state": state, "rows": rows})


def grouped(x: Block, sizes: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The tokens in calls of these sizes."""
    state, rows, outputs, start = x.state, x.rows, [], 0
    for size in sizes:
        y, state, rows = run(part(x, start, start + size, state, rows))
        outputs.append(y)
        start += size
    assert start == x.tokens
    return np.concatenate(outputs), state, rows


# ---- the C part ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 2, 3, 8, 9, 15, 16, 17, 255, 256, 257, 600])
def test_it_equals_the_definition(isa: str, tokens: int) -> None:
    x = block(tokens)
    y, state, rows = run(x)
    expected_y, expected_state, expected_rows = definition(x)
    assert_close(y, expected_y, 1e-6)
    assert_close(state, expected_state, 5e-7)
    assert np.array_equal(rows, expected_rows.astype(np.float32))


@pytest.mark.parametrize(
    ("k_heads", "group", "dk", "dv"), [(1, 1, 16, 16), (1, 4, 192, 128), (3, 2, 128, 112)]
)
@pytest.mark.parametrize("tokens", [1, 40])
def test_other_shapes_of_heads(isa: str, tokens: int, k_heads: int, group: int, dk: int, dv: int) -> None:
    x = block(tokens, k_heads=k_heads, group=group, dk=dk, dv=dv)
    y, state, _ = run(x)
    expected_y, expected_state, _ = definition(x)
    assert_close(y, expected_y, 1e-6)
    assert_close(state, expected_state, 5e-7)


@pytest.mark.parametrize("cosine", [0.9, 0.99])
@pytest.mark.parametrize("sizes", [[256], [8] * 32])
def test_correlated_keys_stay_stable(isa: str, cosine: float, sizes: list[int]) -> None:
    x = block(256, cosine=cosine)
    y, state, _ = grouped(x, sizes)
    expected_y, expected_state, _ = definition(x)
    assert_close(y, expected_y, 2e-6)
    assert_close(state, expected_state, 2e-6)


@pytest.mark.parametrize("sizes", [[100], [4] * 25])
def test_hard_gates(isa: str, sizes: list[int]) -> None:
    x = block(100, gate="hard")
    y, state, _ = grouped(x, sizes)
    expected_y, expected_state, _ = definition(x)
    assert_close(y, expected_y, 2e-6)
    assert_close(state, expected_state, 5e-7)


@pytest.mark.parametrize("tokens", [1, 20])
def test_extreme_inputs_give_no_nan(isa: str, tokens: int) -> None:
    x = block(tokens)
    for name, size in itertools.product(("qkv", "z", "b", "a"), (1e4, -1e4, 0.0, 1e-30)):
        y, state, _ = run(Block(**{**vars(x), name: np.full_like(getattr(x, name), size)}))
        assert np.isfinite(y).all()
        assert np.isfinite(state).all()


@pytest.mark.parametrize("tokens", [1, 5, 17, 64])
def test_alignment_does_not_change_a_bit(isa: str, tokens: int) -> None:
    x = block(tokens)
    whole = run(x)
    for shift in (1, 3, 8, 15):
        for a, b in zip(whole, run(x, shift=shift), strict=True):
            assert np.array_equal(a, b)


def test_grouping_does_not_change_a_bit_within_few_tokens_and_within_many(isa: str) -> None:
    x = block(600)
    for one, other in (([1] * 600, [8, 2, 1, 5, 8] * 25), ([600], [9, 300, 17, 274])):
        for a, b in zip(grouped(x, one), grouped(x, other), strict=True):
            assert np.array_equal(a, b)


def test_one_by_one_equals_one_call(isa: str) -> None:
    x = block(300)
    y, state, _ = grouped(x, [1] * 300)
    whole_y, whole_state, _ = run(x)
    assert_close(y, whole_y, 1e-6)
    assert_close(state, whole_state, 5e-7)


@pytest.mark.parametrize("tokens", [1, 2, 40])
def test_no_rows_before_the_first_token_are_zeros(isa: str, tokens: int) -> None:
    x = block(tokens)
    x.rows[:] = 0
    for a, b in zip(run(x), run(x, empty_rows=True), strict=True):
        assert np.array_equal(a, b)


def test_an_instruction_set_can_be_asked_for_and_an_unknown_one_is_refused() -> None:
    code = (
        "from backburner.native.recurrent import load_recurrent, why_missing\n"
        "kernel = load_recurrent()\nprint(kernel.isa if kernel else why_missing())"
    )
    for wanted, said in (("generic", "generic"), ("no-such-set", "no-such-set: this CPU or build")):
        output = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, ISA_VARIABLE: wanted},
            cwd=Path(__file__).parent.parent,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        assert said in output


# ---- the layer -------------------------------------------------------------------------------------------------------


def qwen3_5_layer() -> nn.Module:
    return GatedDeltaNet(
        TextModelArgs(
            hidden_size=96,
            linear_num_value_heads=4,
            linear_num_key_heads=2,
            linear_key_head_dim=64,
            linear_value_head_dim=48,
        )
    )


def qwen3_next_layer() -> nn.Module:
    unused = (
        *(
            "num_hidden_layers",
            "intermediate_size",
            "num_attention_heads",
            "num_experts",
            "num_experts_per_tok",
        ),
        *("decoder_sparse_step", "shared_expert_intermediate_size", "moe_intermediate_size", "vocab_size"),
        *("num_key_value_heads", "head_dim", "max_position_embeddings"),
    )
    return Qwen3NextGatedDeltaNet(
        ModelArgs(
            model_type="qwen3_next",
            hidden_size=96,
            linear_num_value_heads=4,
            linear_num_key_heads=2,
            linear_key_head_dim=64,
            linear_value_head_dim=48,
            linear_conv_kernel_dim=4,
            mlp_only_layers=[],
            rms_norm_eps=1e-6,
            rope_theta=1e4,
            partial_rotary_factor=0.25,
            **dict.fromkeys(unused, 1),
        )
    )


LAYERS = {"qwen3_5": qwen3_5_layer, "qwen3_next": qwen3_next_layer}


@pytest.fixture(params=LAYERS)
def layers(request: pytest.FixtureRequest) -> tuple[nn.Module, nn.Module]:
    """mlx-lm's layer, and ours with the same weights."""
    pair = LAYERS[request.param](), LAYERS[request.param]()
    mx.random.seed(1)
    # Weights of a size at which conv, gates and norm all matter.
    pair[0].apply(lambda w: w + 0.1 * mx.random.normal(w.shape))
    pair[1].update(pair[0].parameters())
    mx.eval(pair[0].parameters())
    use_native_recurrent(pair[1])
    assert type(pair[1]) in (NativeGatedDeltaNet, NativeQwen3NextGatedDeltaNet)
    return pair


def hidden(tokens: int, batch: int = 1) -> mx.array:
    return mx.random.normal((batch, tokens, 96), key=mx.random.key(tokens))


def native_runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of each call that the C part gets."""
    runs: list[int] = []
    kernel = type(load_recurrent())
    real = kernel.run

    def counted(self, layer, tokens, *rest):
        runs.append(tokens)
        return real(self, layer, tokens, *rest)

    monkeypatch.setattr(kernel, "run", counted)
    return runs


def assert_same_state(cache: ArraysCache, expected: ArraysCache, relative: float = 1e-6) -> None:
    for a, b in zip(cache.cache, expected.cache, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        assert_close(np.array(a), np.array(b), relative)


@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, 256])
def test_it_equals_mlx_lms_layer(layers, monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    theirs, ours = layers
    runs = native_runs(monkeypatch)
    cache, expected_cache = ArraysCache(2), ArraysCache(2)
    for x in (hidden(tokens), hidden(tokens + 1)):  # from nothing, then from a state
        y, expected = ours(x, None, cache), theirs(x, None, expected_cache)
        assert_close(np.array(y), np.array(expected), 3e-6)
        assert_same_state(cache, expected_cache)
    assert runs == [tokens, tokens + 1]


def test_states_stay_equal_over_many_steps(layers) -> None:
    theirs, ours = layers
    cache, expected_cache = ArraysCache(2), ArraysCache(2)
    x = hidden(300)
    ours(x[:, :100], None, cache), theirs(x[:, :100], None, expected_cache)
    for t in range(100, 300):
        y, expected = ours(x[:, t : t + 1], None, cache), theirs(x[:, t : t + 1], None, expected_cache)
        mx.eval(expected, expected_cache.cache)
        assert_close(np.array(y), np.array(expected), 3e-6)
    assert_same_state(cache, expected_cache)


def test_two_runs_give_the_same_bits(layers) -> None:
    _, ours = layers
    results = []
    for _ in range(2):
        cache = ArraysCache(2)
        ys = [ours(hidden(n), None, cache) for n in (40, 1, 1, 3)]
        results.append([np.array(a) for a in (*ys, *cache.cache)])
    for a, b in zip(*results, strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("tokens", [1, 20])
def test_a_kept_state_never_changes(layers, tokens: int) -> None:
    """However it was kept: as the array, as a copy of the cache, as a view, as numpy or in a graph not yet run."""
    _, ours = layers
    cache = ArraysCache(2)
    ours(hidden(20), None, cache)
    keepers = {
        "the array": lambda c: list(c.cache),
        "a view": lambda c: [c[0][:, 1:], c[1][:, :2]],
        "an evaluated view": lambda c: [y for y in [c[0][:, 1:], c[1][:, :2]] if mx.eval(y) is None],
        "numpy": lambda c: [np.array(y, copy=False) for y in c.cache],
        "a graph": lambda c: [y * 2 for y in c.cache],
        "a reshaped array": lambda c: [y.reshape(-1) for y in c.cache],
    }
    for name, keep in keepers.items():
        before = [np.array(y) for y in keep(cache)]
        kept = keep(cache)
        for _ in range(3):
            mx.eval(ours(hidden(tokens), None, cache))
        for a, b in zip(before, kept, strict=True):
            assert np.array_equal(a, np.array(b)), name


def test_two_caches_may_go_on_from_one_state(layers) -> None:
    _, ours = layers
    first = ArraysCache(2)
    ours(hidden(20), None, first)
    second, third = ArraysCache(2), ArraysCache(2)
    second.cache = list(first.cache)
    third.cache = [mx.array(np.array(y)) for y in first.cache]
    mx.eval(ours(hidden(7), None, first))
    expected = np.array(ours(hidden(5), None, third))
    assert np.array_equal(np.array(ours(hidden(5), None, second)), expected)


def test_a_state_of_its_own_is_not_copied() -> None:
    _, ours = qwen3_5_layer(), qwen3_5_layer()
    use_native_recurrent(ours)
    cache = ArraysCache(2)
    addresses = set()
    for _ in range(4):
        mx.eval(ours(hidden(1), None, cache))
        addresses.add(np.array(cache[1], copy=False).ctypes.data)
    assert len(addresses) == 1


def test_a_state_in_another_order_of_memory_is_read_right(layers) -> None:
    theirs, ours = layers
    cache, expected_cache = ArraysCache(2), ArraysCache(2)
    for layer, c in ((ours, cache), (theirs, expected_cache)):
        layer(hidden(20), None, c)
        c.cache = [y.swapaxes(-1, -2) + 0 for y in c.cache]
        c.cache = [mx.contiguous(y).swapaxes(-1, -2) for y in c.cache]
        mx.eval(c.cache)
    for tokens in (3, 1):
        y, expected = ours(hidden(tokens), None, cache), theirs(hidden(tokens), None, expected_cache)
        assert_close(np.array(y), np.array(expected), 3e-6)
    assert_same_state(cache, expected_cache)


@pytest.mark.parametrize("case", ["two sequences", "a mask", "fp16", "no cache", "padding"])
def test_what_the_c_part_does_not_run_goes_to_mlx_lm(
    layers, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    theirs, ours = layers
    runs = native_runs(monkeypatch)
    x, mask = hidden(6, batch=2 if case == "two sequences" else 1), None
    if case == "a mask":
        mask = mx.array([[False] * 2 + [True] * 4])
    if case == "fp16":
        x = x.astype(mx.float16)
        for layer in layers:
            layer.set_dtype(mx.float16)
    caches = [
        None if case == "no cache" else ArraysCache(2, left_padding=[0] if case == "padding" else None)
        for _ in layers
    ]
    expected, y = theirs(x, mask, caches[0]), ours(x, mask, caches[1])
    assert np.array_equal(np.array(y), np.array(expected))
    assert not runs


def test_a_replaced_parameter_is_noticed(layers) -> None:
    theirs, ours = layers
    ours(hidden(3), None, ArraysCache(2))
    for layer in layers:
        layer.A_log = mx.array([0.5, -1.0, 1.0, 0.0])
        layer.conv1d.weight = layers[0].conv1d.weight * 2 if layer is theirs else theirs.conv1d.weight
    y, expected = ours(hidden(3), None, ArraysCache(2)), theirs(hidden(3), None, ArraysCache(2))
    assert_close(np.array(y), np.array(expected), 3e-6)


@pytest.mark.parametrize("tokens", [1, 20])
def test_quantised_projections_feed_it_too(layers, monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    theirs, ours = layers
    runs = native_runs(monkeypatch)
    for layer in layers:
        nn.quantize(layer, group_size=32, bits=8)
        for child in layer.leaf_modules().values():
            if type(child) is nn.QuantizedLinear:
                child.__class__ = PerCallQuantizedLinear
    y = ours(hidden(tokens), None, ArraysCache(2))
    assert_close(np.array(y), np.array(theirs(hidden(tokens), None, ArraysCache(2))), 3e-6)
    assert runs == [tokens]


@pytest.mark.parametrize("missing", ["the C part", "an MLX that copies what is held"])
def test_without_what_it_needs_layers_stay_mlx_lms(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    if missing == "the C part":
        monkeypatch.setattr(module, "load_recurrent", lambda: None)
    else:
        monkeypatch.setattr(module, "_own_copies", lambda: False)
    layer = qwen3_5_layer()
    use_native_recurrent(layer)
    assert type(layer) is GatedDeltaNet
