"""The page program is what was asked for: ten operations, every constant by its name, and it says so if it is not."""

import numpy as np
import pytest

from backburner.coreml.layout import constants_of
from backburner.coreml.manifest import from_json
from backburner.coreml.page_program import build, random_arrays
from backburner.coreml.shape import PageShape
from backburner.coreml.spec import read_program, read_spec
from backburner.errors import ConfigError
from tests.coreml_support import SMALL, built, needs_coremltools

pytestmark = needs_coremltools

SHAPES = [
    SMALL,
    PageShape(2, 2, 16, 64, 16, 3, estimate=False),
    PageShape(6, 1, 32, 48, 16, 32),
    PageShape(8, 2, 16, 64, 32, 32, estimate=False, weights="int8"),
    PageShape(4, 2, 16, 32, 32, 8, variant="softmax"),
    PageShape(4, 2, 16, 32, 32, 8, variant="matmul"),
]
BLOCK_OPERATIONS = {
    "const", "split", "conv", "reduce_max", "maximum", "sub", "exp", "add", "real_div", "concat"
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s.variant}-{s.weights}-{s.kv_heads}x{s.head_dim}")
def test_every_constant_has_its_name_shape_and_place(shape: PageShape) -> None:
    one = built(shape)
    blobs = dict(read_program(read_spec(one.spec)).blobs())
    assert {c.name for c in one.manifest.constants} == set(constants_of(shape)) == set(blobs)
    for constant in one.manifest.constants:
        assert blobs[constant.name].shape == constant.shape
        assert blobs[constant.name].metadata_offset == constant.metadata_offset
    assert [port.name for port in one.manifest.outputs] == ["o", "mc", "l"]
    assert from_json(one.manifest.to_json()) == one.manifest


def test_the_default_program_has_only_operations_that_the_engine_runs_well() -> None:
    operations = read_program(read_spec(built(SMALL).spec)).operations
    assert {operation.kind for operation in operations} <= BLOCK_OPERATIONS


def test_a_template_has_the_same_bytes_every_time() -> None:
    again = build(SMALL)
    assert again.spec == built(SMALL).spec
    assert again.weights == built(SMALL).weights


def test_constants_that_a_pass_merged_are_refused() -> None:
    """Two equal arrays of more than a hundred numbers become one, which nobody could patch apart."""
    arrays = random_arrays(SMALL)
    arrays["k_1_0"] = arrays["k_0_0"].copy()
    with pytest.raises(ConfigError, match="k_1_0"):
        build(SMALL, arrays)


@pytest.mark.parametrize(
    "wrong",
    [
        {"q_heads": 3},
        {"block_tokens": 24},
        {"head_dim": 8},
        {"columns": 1},
        {"variant": "fused"},
        {"weights": "int4"},
        {"weights": "int8"},
        {"variant": "softmax"},
        {"shift": 8.5},
        {"kv_heads": 0},
    ],
    ids=str,
)
def test_impossible_shapes_are_refused(wrong: dict[str, object]) -> None:
    fields = {name: getattr(SMALL, name) for name in SMALL.__dataclass_fields__}
    with pytest.raises(ConfigError):
        PageShape(**fields | wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"template_version": 1', '"template_version": 2'),
        ('"metadata_offset": 64', '"metadata_offset": 32'),
        ('"metadata_offset": 64', '"metadata_offset": 65'),
        ('"dtype": "float16"', '"dtype": "float64"'),
        ('"file_bytes": ', '"file_bytes": -'),
        ('"columns"', '"rows"'),
        ('"mask_value": -30000.0', '"mask_value": 0.0'),
        ('"role": "k"', '"role": "v"'),
        ("{", "["),
    ],
)
def test_a_manifest_that_would_patch_the_wrong_bytes_is_refused(old: str, new: str) -> None:
    text = built(SMALL).manifest.to_json()
    assert old in text
    with pytest.raises(ConfigError):
        from_json(text.replace(old, new, 1))


def test_random_fills_differ() -> None:
    arrays = [a.tobytes() for name, a in random_arrays(SMALL).items() if name != "ones"]
    assert len(set(arrays)) == len(arrays)
    assert np.all(random_arrays(SMALL)["ones"] == 2.0**-4)
