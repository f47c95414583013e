"""A short name for exactly these weights, so that K and V of one model are never taken for another's."""

import hashlib
import json
import os
import platform
import re
import struct
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

from backburner import __version__
from backburner.attention.engine import Geometry
from backburner.native.kernels import load_kernels

# Hashing 15 GB takes half a minute. Training or quantising changes every tensor everywhere, so both ends of each do.
SAMPLE_BYTES = 4096

# What describes the run or the file, not the model.
_IGNORED = (
    "_name_or_path",
    "transformers_version",
    "model_type",
    "architectures",
    "use_cache",
    "torch_dtype",
    "dtype",
)


# A decoder layer's tensor: not one of the multi-token predictor `mtp`, nor of the vision part.
_LAYER = re.compile(r"^(?:model\.|language_model\.)*layers\.(\d+)\.")
_NORM = re.compile(r"^(?:model\.|language_model\.)*norm\.")
_HEAD = re.compile(r"^(?:model\.|language_model\.)*lm_head\.")
_EMBEDDING = re.compile(r"^(?:model\.|language_model\.)*embed_tokens\.")


def fingerprint(folder: Path, config: dict[str, Any]) -> bytes:
    """32 bytes over the architecture and, for each tensor, its name, dtype, shape, first and last bytes."""
    return _digest(folder, config, lambda name: True)


def layers_fingerprint(folder: Path, config: dict[str, Any], first: int, stop: int, head: bool) -> bytes:
    """`fingerprint`, but of layers [first, stop) alone and, with `head`, of the final norm and the output head.

    So a folder with only these tensors has the same. A model without an output head uses its embedding as one.
    """

    def wanted(name: str) -> bool:
        if layer := _LAYER.match(name):
            return first <= int(layer[1]) < stop
        return head and any(pattern.match(name) for pattern in (_NORM, _EMBEDDING if tied else _HEAD))

    tied = bool(config.get("text_config", config).get("tie_word_embeddings", False))
    return _digest(folder, config, wanted)


def _digest(folder: Path, config: dict[str, Any], wanted: Callable[[str], bool]) -> bytes:
    digest = hashlib.sha256()
    architecture = {k: v for k, v in config.items() if k not in _IGNORED}
    digest.update(json.dumps(architecture, sort_keys=True).encode())
    tensors: dict[str, bytes] = {}
    for path in folder.glob("model*.safetensors"):
        tensors.update(_tensor_digests(path, wanted))
    for name in sorted(tensors):  # by name, so that the sharding of the files does not matter
        digest.update(name.encode() + b"\0" + tensors[name])
    return digest.digest()


def rows_fingerprint(model: bytes, geometry: Geometry, engine: str, ubatch_tokens: int) -> bytes:
    """Over all that the bits of K and V depend on but the tokens: weights, shapes and dtype, and what computes them.

    Equal page keys have to mean equal bits: a page that another build, engine or instruction set has made is not it.
    """
    kernels = load_kernels()
    computed_by = (
        __version__,
        version("mlx"),
        version("mlx-lm"),
        version("numpy"),
        platform.machine(),
        str(mx.default_device()),
        kernels.isa if kernels else "",
        os.environ.get("MLX_DISABLE_COMPILE", ""),
        engine,
        ubatch_tokens,
        geometry,
    )
    return hashlib.sha256(model + repr(computed_by).encode()).digest()


def _tensor_digests(path: Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    digests = {}
    with path.open("rb") as file:
        (header_len,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(header_len))
        base = 8 + header_len
        for name, info in header.items():
            if name == "__metadata__" or not wanted(name):
                continue
            start, end = info["data_offsets"]
            digest = hashlib.sha256(f"{info['dtype']}{info['shape']}".encode())
            for offset in (start, max(start, end - SAMPLE_BYTES)):
                file.seek(base + offset)
                digest.update(file.read(min(SAMPLE_BYTES, end - offset)))
            digests[name] = digest.digest()
    return digests
