"""Finds a model, checks that it is of the Qwen hybrid family, and loads it through mlx-lm."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.utils import load_model, load_tokenizer

from backburner.config import EMBEDDED, expanded
from backburner.errors import ModelError
from backburner.model.cpu import prepare_for_cpu, runs_on_cpu
from backburner.model.fingerprint import fingerprint
from backburner.model.hybrid import HybridModel

TINY = Path(__file__).parent / "tiny"

SUPPORTED = (
    "Qwen hybrid models: model_type qwen3_5, qwen3_5_moe, qwen3_next, and 3.6 / 3.8 of the same layout"
)

# What a newer minor version of the family would call itself: qwen3_6, qwen3_8_moe, qwen3_6_text, ...
_NEWER = re.compile(r"qwen3_\d+(_moe)?(_text)?$")

# The fields that make a config one of this layout, whatever it calls itself.
_LAYOUT_FIELDS = (
    "linear_num_value_heads",
    "linear_num_key_heads",
    "linear_key_head_dim",
    "linear_conv_kernel_dim",
)

_FILES = ["*.json", "model*.safetensors", "tokenizer.model", "*.txt", "*.jinja"]

LoadProgress = Callable[[int, int], None]  # layers loaded, layers in all


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run on the thread that loaded it."""

    model: HybridModel
    name: str
    notes: tuple[str, ...]  # what was changed for this machine, for the log


def find_model(model: str, config_only: bool = False) -> tuple[str, Path]:
    """The name to serve and the local folder of `--model`: `tiny` (embedded), a folder, or a Hugging Face id.

    Of an id that is not in the hub's cache, the whole model is downloaded, or config.json alone.
    Raises ModelError when there is no such folder or the hub cannot give it, ConfigError for ~ of an unknown user.
    """
    if model == EMBEDDED:
        return EMBEDDED, TINY
    folder = expanded(model)
    if folder.is_dir():
        return folder.resolve().name, folder
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        raise ModelError(f"--model {model}: no such folder, and not a Hugging Face id (OWNER/NAME).")
    from huggingface_hub import hf_hub_download, snapshot_download

    try:
        # The config alone first: a model that we cannot run must not cost a download of gigabytes.
        config = Path(hf_hub_download(model, "config.json"))
        model_type_for(read_config(config.parent))
        found = config.parent if config_only else Path(snapshot_download(model, allow_patterns=_FILES))
        return model.split("/")[1], found
    except ModelError:
        raise
    except Exception as e:  # the hub raises many kinds: offline, gated, missing, disk full
        raise ModelError(
            f"--model {model}: no such folder here, and Hugging Face did not give it: {e}. "
            "Check the name, the network and `hf auth login`, or pass a local folder."
        ) from e


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a model folder. Raises ModelError when it is missing or not JSON."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except FileNotFoundError:
        raise ModelError(f"{folder} has no config.json: it is not a model folder.") from None
    except ValueError as e:
        raise ModelError(f"{folder}/config.json is not valid JSON: {e}") from None
    if not isinstance(config, dict):
        raise ModelError(f"{folder}/config.json is not a JSON object.")
    return config


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of a config, flat or nested."""
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else config


def model_type_for(config: dict[str, Any]) -> str:
    """The mlx-lm architecture that runs this config. Raises ModelError, naming what is supported, for any other."""
    model_type = str(config.get("model_type", ""))
    text = text_config(config)
    if model_type == "qwen3_next":
        mapped = "qwen3_next"
    elif _NEWER.match(model_type):
        moe = "_moe" in model_type or int(text.get("num_experts") or 0) > 0
        mapped = "qwen3_5_moe" if moe else "qwen3_5"
    else:
        raise ModelError(f"model_type {model_type!r} is not supported. Backburner runs {SUPPORTED}.")
    missing = [name for name in _LAYOUT_FIELDS if name not in text]
    if missing:
        raise ModelError(
            f"model_type {model_type!r} lacks {', '.join(missing)}: it is not of the hybrid layout. "
            f"Backburner runs {SUPPORTED}."
        )
    _check_layer_types(text)
    return mapped


def _check_layer_types(text: dict[str, Any]) -> None:
    """mlx-lm reads only full_attention_interval; a layer_types list that says otherwise would run wrongly silently."""
    types = text.get("layer_types")
    if not isinstance(types, list):
        return
    interval = int(text.get("full_attention_interval", 4))
    for i, kind in enumerate(types):
        if (kind == "full_attention") != ((i + 1) % interval == 0):
            raise ModelError(
                f"layer_types[{i}] is {kind!r}, but with full_attention_interval {interval} it would be the other "
                "kind. Only a regular repetition of recurrent and full-attention layers is supported."
            )


def read_tokenizer(folder: Path) -> Any:
    """The tokenizer as mlx-lm wraps it (chat template, detokenizer, end tokens). Needs no MLX thread."""
    try:
        return load_tokenizer(folder, eos_token_ids=_eos_token_ids(folder))
    except Exception as e:  # transformers raises many kinds for a broken tokenizer folder
        raise ModelError(f"{folder}: the tokenizer does not load: {e}") from e


def _eos_token_ids(folder: Path) -> Any:
    generation = _read_optional(folder / "generation_config.json")
    config = read_config(folder)
    return generation.get("eos_token_id", config.get("eos_token_id", text_config(config).get("eos_token_id")))


def _read_optional(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def sampling_defaults(folder: Path) -> dict[str, float]:
    """What the model's authors recommend; greedy where they say nothing or do_sample is false."""
    generation = _read_optional(folder / "generation_config.json")
    if generation.get("do_sample") is False:
        return {}
    fields = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    return {f: generation[f] for f in fields if isinstance(generation.get(f), int | float)}


@dataclass(frozen=True, slots=True)
class Part:
    """Layers [first, stop) of a model, with the final norm and the output head or without."""

    first: int
    stop: int
    head: bool


def load(
    name: str, folder: Path, on_progress: LoadProgress | None = None, part: Part | None = None
) -> LoadedModel:
    """Loads the weights, of a `part` or all. Call it on the thread that will run the model: MLX graphs stay on theirs.

    Raises ModelError.
    """
    config = read_config(folder)
    mapped = model_type_for(config)
    try:
        raw, _ = load_model(folder, lazy=True, model_config={"model_type": mapped})
    except Exception as e:  # missing files, shape mismatch, unreadable safetensors
        raise ModelError(f"{folder}: the weights do not load: {e}") from e
    notes = prepare_for_cpu(raw) if runs_on_cpu() else ()
    model = HybridModel(raw, text_config(config), fingerprint(folder, config))
    if part is not None:
        # After `prepare_for_cpu`, which decides by the whole model's size: so all parts of it get the same form.
        model.keep_layers(part.first, part.stop, part.head)
    for done, i in enumerate(model.kept_layers, 1):
        mx.eval(model.layers[i].parameters())
        if on_progress:
            on_progress(done, len(model.kept_layers))
    mx.eval(raw.parameters())
    return LoadedModel(model, name, notes)
