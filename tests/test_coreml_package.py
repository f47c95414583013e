"""`backburner bake`: a template, a page of it, and what is refused."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from backburner.cli import app
from backburner.coreml.blob import array_of, new_image
from backburner.coreml.interpreter import Interpreter
from backburner.coreml.package import bake_page, read_template, write_template
from backburner.coreml.selftest import attend64, made_up, measure
from backburner.coreml.shape import PageShape
from backburner.errors import BakeRefused, ConfigError
from tests.coreml_support import SMALL, needs_coremltools, small_rows

pytestmark = needs_coremltools


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A template of the embedded model."""
    folder = tmp_path_factory.mktemp("bake") / "template"
    run("bake", "template", "-o", folder, "--bake-tokens", 256, "--block-tokens", 128, "--columns", 32)
    return folder


def test_a_template_is_small_and_tests_itself(folder: Path) -> None:
    assert sum(file.stat().st_size for file in folder.iterdir()) < 100_000
    template = read_template(folder)
    test = template.manifest.self_test
    assert test is not None
    # As another machine would: page and queries from the seed, the expected answer from the file.
    k, v, q = made_up(template.manifest.shape, test.seed, test.filled, test.tokens)
    truth = attend64(k, v, q, test.scale)
    expected = (folder / test.file).read_bytes()
    assert hashlib.sha256(expected).hexdigest() == test.sha256
    assert expected == truth.o.astype("<f4").tobytes() + truth.lse.astype("<f4").tobytes()


def test_a_page_is_a_package_that_answers(folder: Path, tmp_path: Path) -> None:
    template = read_template(folder)
    shape = template.manifest.shape
    k, v, q = made_up(shape, 1, 200, 2)
    np.savez(tmp_path / "kv.npz", k=k, v=v)
    run("bake", "page", "--template", folder, "--kv", tmp_path / "kv.npz", "-o", tmp_path / "page")
    page = json.loads((tmp_path / "page" / "page.json").read_text())
    assert page["filled"] == 200
    assert page["errors"]["o_rel"] < 3e-3
    data = tmp_path / "page" / "page.mlpackage" / "Data" / "com.apple.CoreML"
    image = np.fromfile(data / "weights" / "weight.bin", np.uint8)
    assert hashlib.sha256(image.data).hexdigest() == page["weights_sha256"]
    program = Interpreter((data / "model.mlmodel").read_bytes(), image)
    exponents = np.array(page["exponents"], np.int16)
    scale = shape.head_dim**-0.5
    errors = measure(program.predict, template.manifest, exponents, q, scale, attend64(k, v, q, scale))
    assert errors.o_rel < 3e-3
    # coremltools' own reader of packages finds model and weights.
    from coremltools.libmodelpackage import ModelPackage

    root = ModelPackage(str(tmp_path / "page" / "page.mlpackage")).getRootModel()
    assert Path(root.path()) == data / "model.mlmodel"


def test_int8_refuses_itself_unless_more_is_allowed(tmp_path: Path) -> None:
    shape = PageShape(12, 2, 64, 256, 128, 32, estimate=False, weights="int8")
    write_template(tmp_path / "template", shape, 64**-0.5)
    template = read_template(tmp_path / "template")
    k, v, _ = made_up(shape, 1, 256, 1)
    with pytest.raises(BakeRefused, match="self-test failed"):
        bake_page(template, k, v, tmp_path / "page")
    assert [path.name for path in tmp_path.iterdir()] == ["template"]  # nothing is left of it
    assert bake_page(template, k, v, tmp_path / "page", o_rel_max=3e-2).errors is not None
    v[:, ::50] *= np.float16(30)  # a few large rows use up the steps of all
    with pytest.raises(BakeRefused, match="self-test failed"):
        bake_page(template, k, v, tmp_path / "another", o_rel_max=3e-2)


def test_int8_weights_are_half_of_the_file(tmp_path: Path) -> None:
    sizes = {}
    for weights in ("float16", "int8"):
        shape = PageShape(12, 2, 64, 256, 128, 32, estimate=False, weights=weights)
        sizes[weights] = write_template(tmp_path / weights, shape, 0.125).file_bytes
    assert sizes["int8"] < 0.6 * sizes["float16"]


def test_a_changed_spec_is_refused(tmp_path: Path) -> None:
    write_template(tmp_path, SMALL, 0.25)
    spec = tmp_path / "model.mlmodel"
    spec.write_bytes(spec.read_bytes() + b"\0")
    with pytest.raises(ConfigError, match="make the template again"):
        read_template(tmp_path)


def test_a_page_is_never_written_over(tmp_path: Path) -> None:
    write_template(tmp_path / "template", SMALL, 0.25)
    template = read_template(tmp_path / "template")
    bake_page(template, *small_rows(64), tmp_path / "page", check=False)
    with pytest.raises(ConfigError, match="exists already"):
        bake_page(template, *small_rows(64), tmp_path / "page", check=False)


def test_what_lies_beside_a_page_is_kept(tmp_path: Path) -> None:
    write_template(tmp_path / "template", SMALL, 0.25)
    (tmp_path / "page.part").mkdir()
    (tmp_path / "page.part" / "notes").write_text("mine")
    bake_page(read_template(tmp_path / "template"), *small_rows(64), tmp_path / "page", check=False)
    assert (tmp_path / "page.part" / "notes").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"template", "page", "page.part"}


@pytest.mark.parametrize("name", ["manifest.json", "model.mlmodel"])
def test_another_ones_files_are_not_written_over(tmp_path: Path, name: str) -> None:
    """A web page's manifest.json, somebody's model."""
    (tmp_path / name).write_text('{"short_name": "mine"}')
    with pytest.raises(ConfigError, match=f"has a {name}, but is no page template"):
        write_template(tmp_path, SMALL, 0.25)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [
        (name, '{"short_name": "mine"}')
    ]


def test_a_template_is_written_over_by_a_new_one(tmp_path: Path) -> None:
    write_template(tmp_path, SMALL, 0.25)
    write_template(tmp_path, SMALL, 0.5)
    test = read_template(tmp_path).manifest.self_test
    assert test is not None
    assert test.scale == 0.5


def test_what_is_no_template_and_no_page_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No page template"):
        read_template(tmp_path)
    (tmp_path / "kv.npz").write_bytes(b"no zip")
    with pytest.raises(ConfigError, match="arrays k and v"):
        run("bake", "page", "--template", tmp_path, "--kv", tmp_path / "kv.npz", "-o", tmp_path / "page")


def test_bad_rows_are_refused_with_their_reason(folder: Path, tmp_path: Path) -> None:
    shape = read_template(folder).manifest.shape
    rows = np.ones((shape.kv_heads, 10, shape.head_dim), np.float32)
    nan, inf, large = rows.copy(), rows.copy(), rows.copy()
    nan[0, 3, 1], inf[0, 3, 1], large[0, 3, 1] = np.nan, np.inf, 7e4
    cases = {
        "K has values": ((nan, rows), (inf, rows), (large, rows)),
        "V has values": ((rows, nan), (rows, inf)),
        "do not fit": (
            (rows[:, :, :-1], rows[:, :, :-1]),
            (rows, rows[:, :5]),
            (rows[:, :0], rows[:, :0]),
            (np.repeat(rows, 100, axis=1), np.repeat(rows, 100, axis=1)),
        ),
        "see `bake page --help`": ((rows[0], rows[0]), (rows.astype(np.float64), rows)),
    }
    for reason, pairs in cases.items():
        for k, v in pairs:
            np.savez(tmp_path / "kv.npz", k=k, v=v)
            with pytest.raises(BakeRefused, match=reason):
                run(
                    "bake", "page", "--template", folder, "--kv", tmp_path / "kv.npz", "-o", tmp_path / "page"
                )
            assert [path.name for path in tmp_path.iterdir()] == ["kv.npz"]


def test_damaged_rows_are_refused(folder: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "whole.npz", k=np.ones((2, 3, 16), np.float16), v=np.ones((2, 3, 16), np.float16))
    whole = (tmp_path / "whole.npz").read_bytes()
    np.save(tmp_path / "one.npy", np.ones(3))
    for data in (whole[: len(whole) // 2], whole[:40], whole.replace(b"NUMPY", b"NUMPI"), b"",
                 (tmp_path / "one.npy").read_bytes()):  # fmt: skip
        (tmp_path / "kv.npz").write_bytes(data)
        with pytest.raises(ConfigError, match="arrays k and v"):
            run("bake", "page", "--template", folder, "--kv", tmp_path / "kv.npz", "-o", tmp_path / "page")


def test_a_folder_that_cannot_be_written_is_said(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="template cannot be written"):
        write_template(tmp_path / "file" / "template", SMALL, 0.25)
    template = read_template(folder)
    shape = template.manifest.shape
    rows = np.ones((shape.kv_heads, 10, shape.head_dim), np.float16)
    with pytest.raises(ConfigError, match="page cannot be written"):
        bake_page(template, rows, rows, tmp_path / "file" / "page", check=False)


def test_a_template_of_another_version_says_what_to_do(tmp_path: Path) -> None:
    write_template(tmp_path, SMALL, 0.25)
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"template_version": 1', '"template_version": 99'))
    with pytest.raises(ConfigError, match=r"has version 99.*bake template"):
        read_template(tmp_path)


def test_the_ones_are_in_every_new_file() -> None:
    from tests.coreml_support import built

    manifest = built(SMALL).manifest
    (ones,) = (one for one in manifest.constants if one.role == "ones")
    assert (array_of(new_image(manifest), ones) == 2.0**-4).all()
