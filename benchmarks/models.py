"""The random hybrid model of the benchmarks: the shape that docs/evidence.md compares with other servers."""

import json
import shutil
from pathlib import Path

from backburner.model.load import TINY

# 16 layers, 169 M parameters: what a 27B model is, scaled to what one core runs in seconds.
SMALL = {
    "model_type": "qwen3_5",
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 3072,
    "rms_norm_eps": 1e-6,
    "linear_num_value_heads": 8,
    "linear_num_key_heads": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "max_position_embeddings": 262144,
    "eos_token_id": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25},
}


def write_small(folder: Path, config: dict[str, object] | None = None, seed: int = 0) -> Path:
    """Writes a model with random fp32 weights and tiny's tokenizer, in mlx-lm's format."""
    # Not above: backburner.model has to be imported before MLX, and sorted imports would put MLX first.
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.models import qwen3_5

    config = config or SMALL
    folder.mkdir(parents=True, exist_ok=True)
    mx.random.seed(seed)
    model = qwen3_5.Model(
        qwen3_5.ModelArgs.from_dict(dict(config, rope_parameters=dict(config["rope_parameters"])))
    )  # type: ignore[call-overload]
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(TINY / name, folder / name)
    return folder
