"""Bytes from disk that are not what they should be end in a ConfigError: manifests, weight.bin, programs."""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backburner.coreml.blob import check_image, new_image, patch
from backburner.coreml.manifest import Manifest, SelfTest, from_json, read_manifest
from backburner.coreml.spec import coremltools
from backburner.errors import ConfigError
from tests.coreml_support import SMALL, built, needs_coremltools, small_rows

FOLDER = Path(__file__).parent / "vectors" / "coreml"
SELF_TEST = SelfTest(5, 30, 1, 0.25, 1e-2, 2e-2, "self_test.bin", "0" * 64)
MANIFESTS = [
    replace(read_manifest(path), self_test=SELF_TEST) for path in sorted(FOLDER.glob("*.manifest.json"))
]
manifests = st.sampled_from(MANIFESTS)
odd_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from([0, 1, -1, 63, 64, 2**31, 2**63, 10**400, "", "../x", [], {}, [[]], {"name": 1}]),
)


def read_or_refused(text: str) -> None:
    """A manifest that is read after all can be used: a page fills its file and nothing else."""
    try:
        manifest = from_json(text)
    except ConfigError:
        return
    image = new_image(manifest)
    shape = manifest.shape
    rows = np.ones((shape.kv_heads, shape.page_tokens, shape.head_dim), np.float16)
    patch(manifest, image, rows, rows)
    check_image(manifest, image)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path into a JSON value."""
    found = [at] if at else []
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            found += places(inner, (*at, key))
    return found


def changed(manifest: Manifest, draw: Any) -> tuple[Any, Any, Any]:
    """The manifest's JSON, and what holds a value of it, drawn, by which key."""
    value = json.loads(manifest.to_json())
    place = draw.draw(st.sampled_from(places(value)))
    holder = value
    for key in place[:-1]:
        holder = holder[key]
    return value, holder, place[-1]


@settings(max_examples=150, deadline=None)
@given(manifests, odd_values, st.data())
def test_one_odd_value(manifest: Manifest, odd: Any, draw: Any) -> None:
    value, holder, key = changed(manifest, draw)
    holder[key] = odd
    read_or_refused(json.dumps(value))


@settings(max_examples=60, deadline=None)
@given(manifests, st.data())
def test_one_value_that_is_missing(manifest: Manifest, draw: Any) -> None:
    value, holder, key = changed(manifest, draw)
    del holder[key]
    with pytest.raises(ConfigError):
        from_json(json.dumps(value))


@settings(max_examples=60, deadline=None)
@given(manifests, st.data())
def test_two_constants_that_lie_over_each_other_or_out_of_the_file(manifest: Manifest, draw: Any) -> None:
    value = json.loads(manifest.to_json())
    constants = value["constants"]
    one, other = (draw.draw(st.sampled_from(constants)) for _ in range(2))
    offset = draw.draw(st.sampled_from([other["metadata_offset"], manifest.file_bytes, 2**40, -64]))
    if offset == one["metadata_offset"]:
        return
    one["metadata_offset"], one["data_offset"] = offset, offset + 64
    with pytest.raises(ConfigError):
        from_json(json.dumps(value))


def test_a_constant_twice_or_never() -> None:
    for manifest in MANIFESTS:
        for constants in (manifest.constants[:-1], (*manifest.constants, manifest.constants[0])):
            with pytest.raises(ConfigError):
                from_json(replace(manifest, constants=constants).to_json())


def test_every_truncation() -> None:
    text = MANIFESTS[0].to_json()
    for cut in range(0, len(text) - 2, 7):
        with pytest.raises(ConfigError):
            from_json(text[:cut])


@settings(max_examples=150, deadline=None)
@given(
    st.binary(max_size=200) | st.sampled_from([b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000, b"\xff\xfe"])
)
def test_any_bytes(data: bytes) -> None:
    read_or_refused(data.decode("latin-1"))


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(b'{"template_version": 1, "\xff')
    with pytest.raises(ConfigError, match=r"manifest\.json"):
        read_manifest(tmp_path / "manifest.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ConfigError, match="No page template"):
        read_manifest(tmp_path / "folder.json")


def test_a_self_test_outside_the_folder() -> None:
    for fields in ({"file": "../self_test.bin"}, {"filled": 10**9}, {"tokens": 0}, {"scale": float("nan")}):
        with pytest.raises(ConfigError, match="self-test"):
            from_json(replace(MANIFESTS[0], self_test=replace(SELF_TEST, **fields)).to_json())


def test_a_page_that_nobody_could_hold() -> None:
    """Refused from its numbers, before anything of that size is made."""
    for sizes in ({"page_tokens": 2**40}, {"kv_heads": 2**30, "q_heads": 2**30}, {"head_dim": 2**40}):
        value = asdict(MANIFESTS[0])
        value["shape"] |= sizes
        with pytest.raises(ConfigError):
            from_json(json.dumps(value))


def test_a_weight_file_that_is_not_the_manifests() -> None:
    for manifest in MANIFESTS:
        image = new_image(manifest)
        check_image(manifest, image)
        for wrong in (image[:-1], image[:0], np.append(image, np.uint8(0))):
            with pytest.raises(ConfigError, match="bytes instead of"):
                check_image(manifest, wrong)
        ours = [*range(64)]
        for one in manifest.constants:
            ours += range(one.metadata_offset, one.data_offset)
        for position in ours[:: max(1, len(ours) // 100)]:
            damaged = image.copy()
            damaged[position] ^= 0x10
            with pytest.raises(ConfigError, match=r"weight\.bin does not"):
                check_image(manifest, damaged)


@needs_coremltools
def test_a_damaged_program() -> None:
    """Read or refused, and what is read runs or is refused."""
    from backburner.coreml.interpreter import Interpreter

    template = built(SMALL)
    image = new_image(template.manifest)
    patch(template.manifest, image, *small_rows(40))
    q = np.zeros(template.manifest.inputs[0].shape, np.float16)
    rng = np.random.default_rng(0)
    refused = 0
    for position in rng.integers(len(template.spec), size=150):
        spec = bytearray(template.spec)
        spec[position] ^= 1 << int(rng.integers(8))
        for damaged in (bytes(spec), template.spec[:position]):
            try:
                Interpreter(damaged, image).predict({"q": q})
            except ConfigError:
                refused += 1
    assert refused > 150  # every truncation, and many of the others
    with pytest.raises(ConfigError, match=r"beyond weight\.bin"):
        Interpreter(template.spec, image[:-100])


def test_coremltools_without_its_native_parts_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip installs it from its sources where it has no wheel."""
    monkeypatch.setitem(sys.modules, "coremltools", ModuleType("coremltools"))
    monkeypatch.setitem(sys.modules, "coremltools.libmilstoragepython", None)
    with pytest.raises(ConfigError, match=r"native parts.*pip install.*there are no wheels for others"):
        coremltools()
