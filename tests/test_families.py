"""Every supported architecture, dense and with experts, on random weights: mlx-lm's tokens, the same bits anywhere."""

import json
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model

from backburner.model.load import TINY, load
from tests.host import generate, generate_with_state, host, link_to, serving

COMMON = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "rms_norm_eps": 1e-6,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "max_position_embeddings": 32768,
    "attention_bias": False,
    "eos_token_id": 2,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 48,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
}
ROPE = {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25}

CONFIGS = {
    "qwen3_5": COMMON | {"model_type": "qwen3_5", "rope_parameters": ROPE, "tie_word_embeddings": False},
    "qwen3_5, tied head, a layer over": COMMON
    | {"model_type": "qwen3_5", "rope_parameters": ROPE, "tie_word_embeddings": True, "num_hidden_layers": 9},
    "qwen3_8": {
        "model_type": "qwen3_8",
        "text_config": COMMON | {"model_type": "qwen3_8_text", "rope_parameters": ROPE},
    },
    "qwen3_5_moe": {
        "model_type": "qwen3_5_moe",
        "text_config": COMMON | EXPERTS | {"model_type": "qwen3_5_moe_text", "rope_parameters": ROPE},
    },
    "qwen3_next": COMMON
    | EXPERTS
    | {"model_type": "qwen3_next", "rope_theta": 1e6, "partial_rotary_factor": 0.25, "mlp_only_layers": [1]},
}


@pytest.fixture(params=CONFIGS)
def folder(request, tmp_path: Path) -> Path:
    return folder_of(request.param, tmp_path)


def folder_of(name: str, tmp_path: Path) -> Path:
    """A model folder of the family with random fp16 weights, as mlx-lm writes them."""
    config = json.loads(json.dumps(CONFIGS[name]))
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, tmp_path / name)
    mx.random.seed(3)
    mapped = {"qwen3_8": "qwen3_5"}.get(config["model_type"], config["model_type"])
    model, _ = load_model(tmp_path, strict=False, lazy=True, model_config={"model_type": mapped})
    # Larger than the initialisation, so that the tokens do not hang on the last bit.
    weights = {
        k: (v if k.endswith("A_log") else (v * 2).astype(mx.float16))
        for k, v in tree_flatten(model.parameters())
    }
    mx.save_safetensors(str(tmp_path / "model.safetensors"), weights)
    return tmp_path


def test_tokens_equal_mlx_lms_and_bits_do_not_depend_on_where_pages_are(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    mapped = {"qwen3_8": "qwen3_5"}.get(config["model_type"], config["model_type"])
    oracle, _ = load_model(folder, model_config={"model_type": mapped})
    oracle.set_dtype(mx.float32)
    prompt = [(i * 37 + 11) % 512 for i in range(300)]
    expected = [int(token) for token, _ in generate_step(mx.array(prompt), oracle, max_tokens=16)]

    model = load("random", folder)
    with host(model=model, page_tokens=32, window_tokens=64) as runner:
        tokens, logits_alone = generate(runner, prompt, 16)
    assert tokens == expected
    with (
        serving() as server,
        host(lambda: link_to(server), model=model, page_tokens=32, window_tokens=64) as runner,
    ):
        _, logits, state = generate_with_state(runner, prompt, 16)
        assert state.table.held >= 4
    assert all(np.array_equal(a, b) for a, b in zip(logits, logits_alone, strict=True))


def test_experts_that_cannot_fit_are_refused_by_name(tmp_path: Path, monkeypatch) -> None:
    from backburner.errors import ModelError
    from backburner.model import load as load_module
    from backburner.model.cpu import prepare_for_cpu

    folder_of("qwen3_5_moe", tmp_path)
    monkeypatch.setattr(
        load_module, "prepare_for_cpu", lambda model: prepare_for_cpu(model, memory_bytes=1000)
    )
    with pytest.raises(ModelError, match="quantised variant"):
        load("random", tmp_path)
