"""The golden files that the Swift patcher is held to are what this side makes. Needs no coremltools."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from backburner.coreml.blob import new_image, patch
from backburner.coreml.manifest import read_manifest
from backburner.coreml.queries import pack, unpack
from backburner.coreml.selftest import bell, uniform16
from scripts.vector_files import DTYPES, from_json

FOLDER = Path(__file__).parent / "vectors" / "coreml"
INDEX: dict[str, Any] = json.loads((FOLDER / "index.json").read_text())


@pytest.mark.parametrize("page", INDEX["pages"], ids=lambda page: page["name"])
def test_pages_become_these_bytes(page: dict[str, Any]) -> None:
    manifest = read_manifest(FOLDER / page["manifest"])
    k, v = (
        np.fromfile(FOLDER / f"{page['name']}.{part}", DTYPES[page["dtype"]]).reshape(page["shape"])
        for part in ("k", "v")
    )
    image = new_image(manifest)
    assert patch(manifest, image, k, v).tolist() == page["exponents"]
    data = image.tobytes()
    assert len(data) == page["bytes"]
    assert hashlib.sha256(data).hexdigest() == page["sha256"]
    assert f"{xxhash.xxh64_intdigest(data):016x}" == page["xxh64"]
    whole = FOLDER / f"{page['name']}.weight.bin"
    if whole.exists():
        assert data == whole.read_bytes()


@pytest.mark.parametrize("case", INDEX["queries"], ids=lambda case: case["manifest"])
def test_queries_are_packed_and_answers_unpacked_like_this(case: dict[str, Any]) -> None:
    manifest = read_manifest(FOLDER / case["manifest"])
    estimate = None if case["estimate"] is None else from_json(case["estimate"])
    assert np.array_equal(
        pack(manifest.shape, from_json(case["q"]), case["scale"], estimate), from_json(case["packed"])
    )
    outputs = {name: from_json(tensor) for name, tensor in case["outputs"].items()}
    exponents = np.array(case["exponents"], np.int16)
    answer = unpack(manifest, outputs, exponents, case["tokens"], estimate)
    assert np.array_equal(answer.o, from_json(case["o"]))
    # Logarithms of different libraries differ in their last bit.
    assert np.abs(answer.lse - from_json(case["lse"])).max() < 1e-5
    assert np.abs(answer.top - from_json(case["top"])).max() < 1e-5


def test_made_up_numbers_are_the_same_everywhere() -> None:
    golden = INDEX["splitmix64"]
    assert uniform16(golden["seed"], 3).tolist() == golden["groups"]
    assert np.array_equal(bell(golden["seed"], 3), from_json(golden["bell"]))
