"""Writes a checkpoint as a folder in mlx-lm's format, and checks that mlx-lm computes the same from it."""

import argparse
import hashlib
import json
import random
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from .conversation import corpus_text
from .model import Config, Tiny
from .split import Draw

HERE = Path(__file__).parent
# fp32 against fp32: what different orders of summation leave.
PARITY_TOLERANCE = 2e-4


def model_config(c: Config, eos_token_id: int) -> dict:
    return {
        "model_type": "qwen3_5",
        "architectures": ["Qwen3_5ForCausalLM"],
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_hidden_layers,
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads,
        "head_dim": c.head_dim,
        "vocab_size": c.vocab_size,
        "rms_norm_eps": c.rms_norm_eps,
        "linear_num_value_heads": c.linear_num_value_heads,
        "linear_num_key_heads": c.linear_num_key_heads,
        "linear_key_head_dim": c.linear_key_head_dim,
        "linear_value_head_dim": c.linear_value_head_dim,
        "linear_conv_kernel_dim": c.linear_conv_kernel_dim,
        "full_attention_interval": c.full_attention_interval,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "max_position_embeddings": 262144,
        "eos_token_id": eos_token_id,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": c.rope_theta,
            "partial_rotary_factor": c.rotary_dim / c.head_dim,
            "mrope_section": [3, 3, 2],
        },
    }


def write_folder(
    model: Tiny, tokenizer_file: Path, out: Path, dtype: torch.dtype = torch.float16
) -> dict[str, str]:
    """The files of a model folder; returns their SHA-256 by name."""
    out.mkdir(parents=True, exist_ok=True)
    vocab = json.loads(tokenizer_file.read_text())["added_tokens"]
    ids = {t["content"]: t["id"] for t in vocab}
    weights = {n: v.to(dtype).contiguous() for n, v in model.exported().items()}
    save_file(weights, out / "model.safetensors", metadata={"format": "mlx"})
    (out / "model.safetensors").chmod(0o644)  # safetensors writes for the owner alone
    (out / "config.json").write_text(
        json.dumps(model_config(model.config, ids["<|im_end|>"]), indent=1) + "\n"
    )
    (out / "generation_config.json").write_text(json.dumps({"eos_token_id": ids["<|im_end|>"]}) + "\n")
    (out / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "Qwen2Tokenizer",
                "bos_token": None,
                "eos_token": "<|im_end|>",
                "pad_token": "<|endoftext|>",
                "clean_up_tokenization_spaces": False,
                "model_max_length": 262144,
            },
            indent=1,
        )
        + "\n"
    )
    shutil.copyfile(tokenizer_file, out / "tokenizer.json")
    shutil.copyfile(HERE / "chat_template.jinja", out / "chat_template.jinja")
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(out.iterdir()) if f.is_file()}


def max_logit_difference(model: Tiny, folder: Path, tokens: list[int]) -> float:
    """Between torch and mlx-lm, both in fp32 from the folder's weights; `model` takes the folder's rounding."""
    import mlx.core as mx
    from mlx.utils import tree_map
    from mlx_lm.utils import load_model

    mx.set_default_device(mx.cpu)
    theirs, _ = load_model(folder)
    theirs.update(tree_map(lambda a: a.astype(mx.float32), theirs.parameters()))
    with torch.no_grad():
        for value in model.p.values():
            value.copy_(value.half().float())
        ours = model.logits(model(torch.tensor([tokens])))[0].numpy()
    other = np.array(theirs(mx.array([tokens]))[0].astype(mx.float32))
    return float(np.abs(ours - other).max())


def check_folder(folder: Path) -> None:
    """mlx-lm loads it without a network, and finds thinking and Qwen's tool calls in template and vocabulary."""
    from mlx_lm.utils import load_tokenizer

    tokenizer = load_tokenizer(folder)
    if not (tokenizer.has_thinking and tokenizer.has_tool_calling):
        raise SystemExit("mlx-lm does not see thinking or tool calls in this folder")
    # transformers replaces the split of a `qwen3_5` tokenizer by Qwen's own: the ids must survive that.
    as_trained = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for i in range(200):
        text = corpus_text(Draw(random.Random(f"export-{i}")))
        if list(tokenizer.encode(text, add_special_tokens=False)) != as_trained.encode(text).ids:
            raise SystemExit(
                "mlx-lm's tokenizer gives other ids than the one that the model was trained with"
            )
    kind = type(tokenizer.detokenizer).__name__
    if kind != "BPEStreamingDetokenizer":
        raise SystemExit(f"mlx-lm would stream with {kind}, not with the byte-level one")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="the training folder, with checkpoint.pt and tokenizer.json")
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    state = torch.load(args.run / "checkpoint.pt", map_location="cpu", weights_only=False)
    model = Tiny(Config(**state["config"]), torch.Generator())
    model.load_state_dict(state["model"])
    hashes = write_folder(model, args.run / "tokenizer.json", args.out)
    check_folder(args.out)
    tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, 192).tolist()
    difference = max_logit_difference(model, args.out, tokens)
    if difference > PARITY_TOLERANCE * 20:
        raise SystemExit(f"mlx-lm's logits differ by {difference:.1e}")
    for name, digest in hashes.items():
        print(f"{digest}  {name}")
    print(f"step {state['step']}; largest logit difference from mlx-lm {difference:.1e}")


if __name__ == "__main__":
    main()
