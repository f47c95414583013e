"""Writes tests/vectors/coreml/, which pytest and XCTest read alike: manifests, pages in, weight.bin out."""

import hashlib
import json
from typing import Any

import numpy as np
import xxhash

from backburner.coreml.blob import new_image, patch
from backburner.coreml.interpreter import Interpreter
from backburner.coreml.manifest import Manifest
from backburner.coreml.page_program import build
from backburner.coreml.queries import pack, unpack
from backburner.coreml.selftest import attend64, bell, made_up, uniform16
from backburner.coreml.shape import PageShape
from scripts.vector_files import VECTORS, as_json, write_folder

FOLDER = VECTORS / "coreml"

SHAPES = {
    "block": PageShape(4, 2, 16, 64, 32, 8),
    "one_head": PageShape(6, 1, 32, 48, 16, 32, estimate=False),
    "int8": PageShape(4, 2, 16, 64, 32, 8, estimate=False, weights="int8"),
    "matmul": PageShape(4, 2, 16, 64, 64, 8, variant="matmul"),
    "softmax": PageShape(4, 2, 16, 64, 64, 8, variant="softmax"),
}
# Template, rows, dtype of K and V. A full page, one row, both sides of a block's edge.
PAGES = [
    ("block", 64, "float16"),
    ("block", 1, "float16"),
    ("block", 31, "bfloat16"),
    ("block", 33, "float32"),
    ("one_head", 40, "float16"),
    ("int8", 50, "float16"),
    ("matmul", 50, "float16"),
    ("softmax", 50, "float16"),
]


def rows_of(manifest: Manifest, filled: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Bell-shaped rows with what is awkward: large and tiny values in one channel, a channel of zeros, -0."""
    shape = manifest.shape
    k, v, _ = made_up(shape, 7, filled, 1)
    v[:, :, 0] *= np.float16(1000)
    v[:, ::2, 0] /= np.float16(4000)
    v[:, :, 1] = 0
    k[:, :, 2] = np.float16(-0.0)
    if dtype == "float32":
        return k.astype(np.float32) * np.float32(1.0001), v.astype(np.float32) * np.float32(2.0**20)
    if dtype == "bfloat16":
        return tuple((x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for x in (k, v))  # type: ignore[return-value]
    return k, v


def files() -> dict[str, bytes]:
    out: dict[str, bytes] = {}
    index: dict[str, Any] = {"pages": [], "queries": []}
    built = {name: build(shape) for name, shape in SHAPES.items()}
    for name, one in built.items():
        out[f"{name}.manifest.json"] = one.manifest.to_json().encode()
    for name, filled, dtype in PAGES:
        manifest = built[name].manifest
        k, v = rows_of(manifest, filled, dtype)
        image = new_image(manifest)
        exponents = patch(manifest, image, k, v)
        data = image.tobytes()
        page = f"{name}_{filled}_{dtype}"
        out[f"{page}.k"], out[f"{page}.v"] = k.tobytes(), v.tobytes()
        index["pages"].append(
            {
                "name": page,
                "manifest": f"{name}.manifest.json",
                "filled": filled,
                "dtype": dtype,
                "shape": list(k.shape),
                "exponents": exponents.tolist(),
                "bytes": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
                "xxh64": f"{xxhash.xxh64_intdigest(data):016x}",
            }
        )
    # One whole file, for whoever looks for the first wrong byte.
    manifest = built["block"].manifest
    image = new_image(manifest)
    patch(manifest, image, *rows_of(manifest, 33, "float32"))
    out["block_33_float32.weight.bin"] = image.tobytes()
    for name in ("block", "one_head", "matmul", "softmax"):
        index["queries"].append(queries(name, built[name]))
    index["splitmix64"] = {
        "seed": 5,
        "groups": uniform16(5, 3).tolist(),
        "bell": as_json(bell(5, 3)),
    }
    out["index.json"] = (json.dumps(index, indent=1) + "\n").encode()
    return out


def queries(name: str, one: Any) -> dict[str, Any]:
    """Queries in, the packed input; the interpreter's outputs, and the partial that they mean."""
    manifest = one.manifest
    tokens = min(3, manifest.shape.query_tokens)
    k, v, q = made_up(manifest.shape, 11, 40, tokens)
    image = new_image(manifest)
    exponents = patch(manifest, image, k, v)
    scale = manifest.shape.head_dim**-0.5
    estimate = None
    if manifest.shape.estimate:
        estimate = attend64(k, v, q, scale).top.astype(np.float32)
        estimate[0, 0] = -np.inf  # not known: nothing is taken off
    packed = pack(manifest.shape, q, scale, estimate)
    outputs = Interpreter(one.spec, image).predict({"q": packed})
    answer = unpack(manifest, outputs, exponents, tokens, estimate)
    return {
        "manifest": f"{name}.manifest.json",
        "tokens": tokens,
        "scale": scale,
        "q": as_json(q),
        "estimate": as_json(estimate),
        "packed": as_json(packed),
        "exponents": exponents.tolist(),
        "outputs": {port: as_json(array.astype(np.float16)) for port, array in outputs.items()},
        "o": as_json(answer.o),
        "lse": as_json(answer.lse.astype(np.float32)),
        "top": as_json(answer.top.astype(np.float32)),
    }


if __name__ == "__main__":
    write_folder(FOLDER, files())
