"""weight.bin is written as coremltools writes it, and a patch changes nothing but its own bytes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backburner.coreml.blob import array_of, new_image, patch, value_exponents
from backburner.coreml.manifest import Manifest
from backburner.coreml.package import write_package
from backburner.coreml.page_program import build, random_arrays
from backburner.coreml.shape import MASK_VALUE, PageShape
from backburner.coreml.spec import read_spec
from backburner.errors import BakeRefused
from tests.coreml_support import SMALL, built, needs_coremltools, small_rows

pytestmark = needs_coremltools

INT8 = PageShape(8, 2, 16, 64, 32, 32, estimate=False, weights="int8")
MATMUL = PageShape(4, 2, 16, 64, 64, 8, variant="matmul")
SOFTMAX = PageShape(4, 2, 16, 64, 64, 8, variant="softmax")
ALL = [SMALL, INT8, MATMUL, SOFTMAX]


def by_name(manifest: Manifest, image: Any) -> dict[str, np.ndarray]:
    return {one.name: array_of(image, one) for one in manifest.constants}


@pytest.mark.parametrize("shape", ALL, ids=lambda s: f"{s.variant}-{s.weights}")
def test_the_same_values_give_the_bytes_of_coremltools(shape: PageShape) -> None:
    """coremltools saves the program with random values; ours writes those values from the manifest."""
    template = built(shape)
    image = new_image(template.manifest)
    for name, array in random_arrays(shape).items():
        by_name(template.manifest, image)[name][...] = array
    assert image.tobytes() == template.weights


def test_a_patched_page_has_the_bytes_of_coremltools() -> None:
    """coremltools builds the program with a page's own K and V; the mask differs from block to block, or it would merge
    the blocks' masks."""
    k, v = small_rows(50)
    manifest = built(SMALL).manifest
    image = new_image(manifest)
    patch(manifest, image, k, v)
    again = build(SMALL, by_name(manifest, image))
    assert again.weights == image.tobytes()
    assert again.spec == built(SMALL).spec


@pytest.mark.parametrize("filled", [64, 20])
def test_coremltools_own_storage_writer_gives_the_same_file(filled: int, tmp_path: Path) -> None:
    """Also where two masks are equal, which its program builder would merge."""
    from coremltools.libmilstoragepython import _BlobStorageWriter

    manifest = built(SMALL).manifest
    image = new_image(manifest)
    patch(manifest, image, *small_rows(filled))
    writer = _BlobStorageWriter(str(tmp_path / "weight.bin"))
    for one in manifest.constants:
        offset = writer.write_fp16_data(array_of(image, one).view(np.uint16).reshape(-1))
        assert offset == one.metadata_offset
    del writer
    assert (tmp_path / "weight.bin").read_bytes() == image.tobytes()


@pytest.mark.parametrize("shape", [SMALL, MATMUL, SOFTMAX], ids=lambda s: s.variant)
def test_coremltools_reads_back_the_rows_that_were_put_in(shape: PageShape, tmp_path: Path) -> None:
    from coremltools.converters.mil.frontend.milproto.load import load

    k, v = small_rows(40)
    template = built(shape)
    image = new_image(template.manifest)
    exponents = patch(template.manifest, image, k, v)
    write_package(tmp_path / "page.mlpackage", template.spec, image)
    weights = tmp_path / "page.mlpackage" / "Data" / "com.apple.CoreML" / "weights"
    program = load(read_spec(template.spec), 9, file_weights_dir=str(weights))
    found = {op.name: op.val.val for op in program.functions["main"].operations if op.op_type == "const"}
    keys = np.zeros((2, 64, shape.key_channels), np.float16)
    values, mask = np.zeros((2, 16, 64), np.float32), np.zeros(64, np.float16)
    for one in template.manifest.constants:
        rows = slice(one.first_row, one.first_row + one.rows)
        heads = slice(one.first_head, one.first_head + one.heads)
        if one.role == "k":
            keys[heads, rows] = found[one.name].reshape(one.heads, one.rows, -1)
        elif one.role == "v":
            values[heads, :, rows] = found[one.name].reshape(one.heads, -1, one.rows)
        elif one.role == "mask":
            mask[rows] = found[one.name].reshape(-1)
    assert np.array_equal(keys[:, :40, :16], k)
    assert not keys[:, 40:, :16].any()
    assert (keys[:, :, 16:] == 1).all()
    assert np.array_equal(mask, np.where(np.arange(64) < 40, 0, np.float16(MASK_VALUE)))
    assert np.abs(values).max() <= 2.0**-4
    # Within half a step of fp16's smallest numbers: what falls below it next to a channel's largest value is lost.
    scaled = np.ldexp(v.astype(np.float32), -exponents[:, None].astype(int)).transpose(0, 2, 1)
    assert np.abs(values[:, :, :40] - scaled).max() <= 2.0**-25
    assert np.mean(values[:, :, :40] == scaled) > 0.97
    assert not values[:, :, 40:].any()


@pytest.mark.parametrize("shape", ALL, ids=lambda s: f"{s.variant}-{s.weights}")
def test_bytes_outside_the_constants_never_change(shape: PageShape) -> None:
    template = built(shape)
    image = np.frombuffer(template.weights, np.uint8).copy()
    patch(template.manifest, image, *small_rows(30))
    outside = np.ones(image.size, bool)
    for one in template.manifest.constants:
        if one.role != "ones":
            outside[one.data_offset : one.data_offset + one.bytes] = False
    assert outside.sum() >= 64 * (1 + len(template.manifest.constants))
    assert np.array_equal(image[outside], np.frombuffer(template.weights, np.uint8)[outside])
    # What was in the constants before does not matter.
    fresh = new_image(template.manifest)
    patch(template.manifest, fresh, *small_rows(30))
    assert np.array_equal(image, fresh)


@pytest.mark.parametrize("shape", ALL, ids=lambda s: f"{s.variant}-{s.weights}")
def test_patching_twice_leaves_nothing_of_the_first_page(shape: PageShape) -> None:
    manifest = built(shape).manifest
    image, fresh = new_image(manifest), new_image(manifest)
    patch(manifest, image, *small_rows(64, seed=1))
    patch(manifest, image, *small_rows(17, seed=2))
    patch(manifest, fresh, *small_rows(17, seed=2))
    assert np.array_equal(image, fresh)


def test_a_mapped_file_can_be_patched_in_place(tmp_path: Path) -> None:
    manifest = built(SMALL).manifest
    new_image(manifest).tofile(tmp_path / "weight.bin")
    mapped = np.memmap(tmp_path / "weight.bin", np.uint8, "r+")
    patch(manifest, mapped, *small_rows(50))
    mapped.flush()
    image = new_image(manifest)
    patch(manifest, image, *small_rows(50))
    assert (tmp_path / "weight.bin").read_bytes() == image.tobytes()


def test_values_are_scaled_by_exact_powers_of_two() -> None:
    v = np.zeros((1, 3, 16), np.float32)
    v[0, 1, :6] = [1.0, -0.75, 1800.0, 2.0**-20, 0.0, -(2.0**100)]
    assert value_exponents(v)[0, :6].tolist() == [5, 4, 15, -15, 0, 105]
    assert np.ldexp(1.0, -5) <= 2.0**-4


def test_rows_of_every_dtype_become_the_same_bytes() -> None:
    manifest = built(SMALL).manifest
    k, v = (np.rint(x.astype(np.float32) * 32) / 32 for x in small_rows(40))  # exact in bfloat16
    images = []
    for convert in (
        lambda x: x,
        lambda x: x.astype(np.float16),
        lambda x: (x.view(np.uint32) >> 16).astype(np.uint16),
    ):
        image = new_image(manifest)
        patch(manifest, image, convert(k), convert(v))
        images.append(image.tobytes())
    assert len(set(images)) == 1


def test_rows_that_fp16_cannot_hold_are_refused() -> None:
    manifest = built(SMALL).manifest
    k, v = (x.astype(np.float32) for x in small_rows(20))
    for name, value in (("K", 1e5), ("K", np.nan), ("V", np.inf), ("V", np.nan)):
        changed = {"K": k.copy(), "V": v.copy()}
        changed[name][1, 3, 5] = value
        image = new_image(manifest)
        with pytest.raises(BakeRefused, match=name):
            patch(manifest, image, changed["K"], changed["V"])
        assert np.array_equal(image, new_image(manifest))


@pytest.mark.parametrize("shape", [(2, 0, 16), (2, 65, 16), (1, 20, 16), (2, 20, 8)])
def test_rows_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    manifest = built(SMALL).manifest
    rows = np.zeros(shape, np.float16)
    with pytest.raises(BakeRefused):
        patch(manifest, new_image(manifest), rows, rows)
