"""Baking pages: time and bytes of template, patch and check, and the errors of each kind of data.

    python benchmarks/bake.py [--page-tokens 16384] [--kv-heads 4] [--rounds 5] [--core 1] [--json]

Errors are the emulated program's against float64 (docs/baked-pages.md); none of this runs on a Neural Engine.
"""

import argparse
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from baked_tokens import identical_tokens
from harness import fair_environment, finish, median_s, pin, usable_cores

from backburner.coreml import scenarios
from backburner.coreml.blob import new_image, patch
from backburner.coreml.interpreter import Interpreter
from backburner.coreml.package import Template, page_errors, read_template, write_template
from backburner.coreml.selftest import attend64, measure
from backburner.coreml.shape import PageShape

LAYERS = 16  # attention layers of the 27B model
GROUP, HEAD_DIM, COLUMNS, TOKENS = 6, 256, 64, 8


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page-tokens", type=int, default=16_384)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5, help="medians are over this many rounds")
    parser.add_argument("--core", type=int, help="the core to run on (default: the last one allowed)")
    parser.add_argument("--filler", type=int, default=100, help="sentences before tiny's question")
    parser.add_argument("--tokens", type=int, default=256, help="greedy tokens that are compared")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    arguments = parser.parse_args()
    fair_environment()
    pin(usable_cores()[-1] if arguments.core is None else arguments.core)
    shape = PageShape(
        q_heads=GROUP * arguments.kv_heads,
        kv_heads=arguments.kv_heads,
        head_dim=HEAD_DIM,
        page_tokens=arguments.page_tokens,
        block_tokens=min(4096, arguments.page_tokens // 2),
        columns=COLUMNS,
    )
    with tempfile.TemporaryDirectory() as folder:
        result = run(shape, Path(folder), arguments.rounds)
    result["identical_tokens"] = identical_tokens(arguments.filler, arguments.tokens)
    finish(result, arguments.json)


def run(shape: PageShape, folder: Path, rounds: int) -> dict[str, Any]:
    start = time.perf_counter()
    write_template(folder / "template", shape, HEAD_DIM**-0.5)
    template_s = time.perf_counter() - start
    template = read_template(folder / "template")
    template_bytes = sum(file.stat().st_size for file in (folder / "template").iterdir())
    data = scenarios.make("flat", shape.kv_heads, shape.page_tokens, HEAD_DIM, shape.q_heads, TOKENS)
    k, v, _ = data
    image = new_image(template.manifest)
    exponents = patch(template.manifest, image, k, v)

    def copy() -> None:
        np.copyto(np.empty_like(image), image)

    def write() -> None:
        (folder / "weight.bin").write_bytes(image.data)

    copy_s = median_s(copy, rounds)
    new_s = median_s(lambda: new_image(template.manifest), rounds)
    patch_s = median_s(lambda: patch(template.manifest, image, k, v), rounds)
    write_s = median_s(write, rounds)
    start = time.perf_counter()
    page_errors(template, image, k, v, exponents, HEAD_DIM**-0.5)
    check_s = time.perf_counter() - start
    page_s = new_s + patch_s + write_s
    errors = {}
    for name in scenarios.NAMES:
        rows = scenarios.make(name, shape.kv_heads, shape.page_tokens, HEAD_DIM, shape.q_heads, TOKENS)
        errors[name] = errors_of(template, *rows)
    rows = scenarios.make(
        "peaky", shape.kv_heads, shape.page_tokens * 10_000 // 16_384, HEAD_DIM, shape.q_heads, TOKENS
    )
    errors["masked"] = errors_of(template, *rows)
    return {
        "benchmark": "bake",
        "page_tokens": shape.page_tokens,
        "kv_heads": shape.kv_heads,
        "template_s": template_s,
        "template_bytes": template_bytes,
        "page_bytes": template.manifest.file_bytes,
        "new_s": new_s,
        "patch_s": patch_s,
        "write_s": write_s,
        "check_s": check_s,
        "page_s": page_s,
        "of_copy": page_s / copy_s,
        "layers": LAYERS,
        "layers_s": LAYERS * page_s,
        "layers_check_s": LAYERS * check_s,
        "layers_bytes": LAYERS * template.manifest.file_bytes,
        "errors": errors,
    }


def errors_of(template: Template, k: np.ndarray, v: np.ndarray, q: np.ndarray) -> dict[str, float]:
    image = new_image(template.manifest)
    exponents = patch(template.manifest, image, k, v)
    scale = HEAD_DIM**-0.5
    predict = Interpreter(template.spec, image).predict
    return asdict(measure(predict, template.manifest, exponents, q, scale, attend64(k, v, q, scale)))


if __name__ == "__main__":
    main()
