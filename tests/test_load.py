"""Which models are taken, how newer names are mapped, and what is said of all others."""

import json
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_model, quantize_model, save_config

from backburner.errors import ModelError
from backburner.model import load as module
from backburner.model.cpu import prepare_for_cpu
from backburner.model.fingerprint import fingerprint
from backburner.model.load import TINY, find_model, load, model_type_for, read_config, sampling_defaults
from tests.host import chat, generate, host, long_prompt, tiny

CONFIG = read_config(TINY)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of tiny that a test may spoil."""
    target = tmp_path / "model"
    shutil.copytree(TINY, target)
    return target


def write_config(folder: Path, config: dict[str, object]) -> None:
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("model_type", "mapped"),
    [
        ("qwen3_5", "qwen3_5"),
        ("qwen3_5_text", "qwen3_5"),
        ("qwen3_6", "qwen3_5"),
        ("qwen3_8", "qwen3_5"),
        ("qwen3_5_moe", "qwen3_5_moe"),
        ("qwen3_8_moe_text", "qwen3_5_moe"),
        ("qwen3_next", "qwen3_next"),
    ],
)
def test_the_family_is_mapped_to_mlx_lms_architectures(model_type: str, mapped: str) -> None:
    assert model_type_for(CONFIG | {"model_type": model_type}) == mapped


def test_experts_make_it_the_moe_form() -> None:
    assert model_type_for(CONFIG | {"model_type": "qwen3_8", "num_experts": 4}) == "qwen3_5_moe"


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "qwen3_moe", "qwen2_5", "", "qwen3_next_vl"])
def test_anything_else_is_refused_with_what_is_supported(model_type: str) -> None:
    with pytest.raises(ModelError, match="qwen3_5, qwen3_5_moe, qwen3_next"):
        model_type_for(CONFIG | {"model_type": model_type})


def test_the_name_alone_is_not_enough() -> None:
    config = {k: v for k, v in CONFIG.items() if not k.startswith("linear_")}
    with pytest.raises(ModelError, match="linear_num_value_heads"):
        model_type_for(config | {"model_type": "qwen3_6"})


def test_layer_types_that_do_not_repeat_are_refused() -> None:
    regular = ["linear_attention"] * 3 + ["full_attention"]
    assert model_type_for(CONFIG | {"layer_types": regular * 2})
    with pytest.raises(ModelError, match=r"layer_types\[1\]"):
        model_type_for(CONFIG | {"layer_types": ["linear_attention", "full_attention"] * 4})


def test_a_newer_name_loads_and_answers_the_same(folder: Path) -> None:
    write_config(folder, {"model_type": "qwen3_8", "text_config": CONFIG | {"model_type": "qwen3_8_text"}})
    prompt = chat("What is Backburner?")
    with host(model=load("newer", folder)) as runner:
        newer, _ = generate(runner, prompt, 16)
    with host() as runner:
        assert generate(runner, prompt, 16)[0] == newer


def test_a_missing_folder_is_not_taken_for_a_hub_name() -> None:
    for name in ("no-such-folder", "./a/b/c", "/nowhere/at all"):
        with pytest.raises(ModelError, match="no such folder"):
            find_model(name)


def test_the_embedded_model_has_a_name() -> None:
    assert find_model("tiny") == ("tiny", TINY)


def test_a_template_of_a_hub_model_takes_its_config_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda model, name: str(TINY / name))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("all of it"))
    assert find_model("somebody/hybrid", config_only=True) == ("hybrid", TINY)


def test_a_hub_name_that_cannot_be_fetched_says_what_to_do(monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match="local folder"):
        find_model("nobody/no-such-model-here")


def test_broken_folders_say_what_is_wrong(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        read_config(tmp_path)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match="not valid JSON"):
        read_config(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="not a JSON object"):
        read_config(folder)


def test_missing_or_cut_weights_say_what_is_wrong(folder: Path) -> None:
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="do not load"):
        load("cut", folder)
    weights.unlink()
    with pytest.raises(ModelError, match="No safetensors"):
        load("empty", folder)


def test_a_config_of_another_size_is_refused(folder: Path) -> None:
    write_config(folder, CONFIG | {"hidden_size": 256})
    with pytest.raises(ModelError, match="do not load"):
        load("wrong", folder)


def test_sampling_follows_the_models_authors(folder: Path) -> None:
    assert sampling_defaults(TINY) == {}
    path = folder / "generation_config.json"
    said = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05}
    path.write_text(json.dumps(said | {"do_sample": True}))
    assert sampling_defaults(folder) == said
    path.write_text(json.dumps({"temperature": 0.6, "do_sample": False}))
    assert sampling_defaults(folder) == {}


def test_the_fingerprint_is_the_weights_not_the_name(folder: Path) -> None:
    same = fingerprint(folder, CONFIG | {"model_type": "qwen3_8", "transformers_version": "9"})
    assert same == fingerprint(TINY, CONFIG)
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    assert fingerprint(folder, CONFIG) != same
    assert fingerprint(TINY, CONFIG | {"rms_norm_eps": 1e-5}) != same


def quantised(folder: Path, bits: int, mode: str = "affine", group_size: int = 64) -> Path:
    model, config = load_model(TINY)
    model.set_dtype(mx.bfloat16)
    model, config = quantize_model(model, config, group_size=group_size, bits=bits, mode=mode)
    from mlx.utils import tree_flatten

    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    save_config(config, folder / "config.json")
    return folder


@pytest.mark.parametrize("form", ["fp16", "4 bits", "8 bits"])
def test_weights_converted_for_each_call_give_the_tokens_of_converted_ones(
    folder: Path, monkeypatch, form: str
) -> None:
    if form != "fp16":
        quantised(folder, int(form[0]))
    prompt = long_prompt()
    with host(model=load("fits", folder)) as runner:
        tokens, logits = generate(runner, prompt, 12)
    monkeypatch.setattr(module, "prepare_for_cpu", lambda model: prepare_for_cpu(model, memory_bytes=0))
    large = load("does not fit", folder)
    assert "converted for each call" in large.notes[0]
    with host(model=large) as runner:
        tokens_large, logits_large = generate(runner, prompt, 12)
    assert tokens_large == tokens
    assert max(np.abs(a - b).max() for a, b in zip(logits_large, logits, strict=True)) < 2e-3


def test_everything_runs_in_fp32_on_cpu() -> None:
    model = tiny().model
    assert model.dtype == mx.float32
    assert model.geometry(64).dtype == "float32"


def test_nothing_is_compiled_at_run_time_on_cpu() -> None:
    calls = []

    @mx.compile
    def traced(x: mx.array) -> mx.array:
        calls.append(1)
        return x + 1

    mx.enable_compile()
    load("tiny", TINY)
    for _ in range(3):
        mx.eval(traced(mx.ones(2)))
    assert len(calls) == 3


def test_weights_of_the_mxfp4_kind_become_fp32_too(folder: Path) -> None:
    model = load("mxfp4", quantised(folder, 4, "mxfp4", 32)).model
    from mlx.utils import tree_flatten

    assert {v.dtype for _, v in tree_flatten(model.raw.parameters())} == {mx.float32}
    with host(model=load("mxfp4", folder)) as runner:
        assert len(generate(runner, chat("Hello!"), 4)[0]) == 4
