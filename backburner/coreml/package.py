"""Folders: a page template (spec, manifest, self-test), and the .mlpackage of a page that was baked from it."""

import hashlib
import json
import secrets
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from backburner.coreml.blob import Image, new_image, patch, widen
from backburner.coreml.interpreter import Interpreter
from backburner.coreml.manifest import SELF_TEST_FILE, Manifest, SelfTest, read_manifest
from backburner.coreml.selftest import (
    LSE_ABS_MAX,
    O_REL_MAX,
    Errors,
    Predict,
    attend64,
    made_up,
    measure,
    require,
)
from backburner.coreml.shape import PageShape
from backburner.errors import ConfigError

SPEC_FILE, MANIFEST_FILE = "model.mlmodel", "manifest.json"
PACKAGE, PAGE_FILE = "page.mlpackage", "page.json"

SELF_TEST_SEED = 20_260_101
SELF_TEST_TOKENS = 4
PAGE_TEST_TOKENS = 3

# Of the items in a package. They only have to differ from each other.
_MODEL_ID = "6d6f6465-6c00-4000-8000-000000000001"
_WEIGHTS_ID = "77656967-6874-4000-8000-000000000002"


@dataclass(frozen=True, slots=True)
class Template:
    spec: bytes
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class PageRecord:
    """page.json: what is needed besides the model to ask it, and to know it again."""

    spec_sha256: str
    weights_sha256: str
    filled: int
    exponents: list[list[int]]  # [kv_heads][head_dim]
    errors: Errors | None  # of the self-test here, in the interpreter; None if it was not run


def write_template(folder: Path, shape: PageShape, scale: float) -> Manifest:
    """Builds a template with coremltools, checks it in the interpreter, and writes its files."""
    from backburner.coreml.page_program import build

    try:
        # First: whether it can be written is known before the long part.
        folder.mkdir(parents=True, exist_ok=True)
        _check_replaceable(folder)
    except OSError as e:
        raise ConfigError(f"The template cannot be written to {folder}: {e}") from None
    built = build(shape)
    filled = max(1, shape.page_tokens * 3 // 4)  # the mask is tested, too
    tokens = min(SELF_TEST_TOKENS, shape.query_tokens)
    k, v, q = made_up(shape, SELF_TEST_SEED, filled, tokens)
    truth = attend64(k, v, q, scale)
    image = new_image(built.manifest)
    exponents = patch(built.manifest, image, k, v)
    errors = measure(Interpreter(built.spec, image).predict, built.manifest, exponents, q, scale, truth)
    # int8 weights are for whoever allows them more: what a page is held to is said when it is baked.
    o_rel_max = O_REL_MAX if shape.weights == "float16" else 4 * O_REL_MAX
    require(errors, o_rel_max)
    expected = b"".join(part.astype("<f4").tobytes() for part in (truth.o, truth.lse))
    digest = hashlib.sha256(expected).hexdigest()
    self_test = SelfTest(
        SELF_TEST_SEED, filled, tokens, scale, o_rel_max, LSE_ABS_MAX, SELF_TEST_FILE, digest
    )
    manifest = replace(built.manifest, self_test=self_test)
    try:
        (folder / MANIFEST_FILE).unlink(missing_ok=True)
        (folder / SPEC_FILE).write_bytes(built.spec)
        (folder / SELF_TEST_FILE).write_bytes(expected)
        (folder / MANIFEST_FILE).write_text(manifest.to_json())  # last: a template with a manifest is whole
    except OSError as e:
        raise ConfigError(f"The template cannot be written to {folder}: {e}") from None
    return manifest


def _check_replaceable(folder: Path) -> None:
    """Raises ConfigError for a folder with files of our names that are no template's, such as a web page's manifest."""
    taken = [name for name in (MANIFEST_FILE, SPEC_FILE, SELF_TEST_FILE) if (folder / name).exists()]
    if not taken:
        return
    try:
        fields = json.loads((folder / MANIFEST_FILE).read_bytes())
        ours = {"template_version", "spec_sha256"} <= fields.keys()
    except (OSError, ValueError, AttributeError, RecursionError):
        ours = False
    if not ours:
        raise ConfigError(
            f"{folder} has a {taken[0]}, but is no page template: name another folder, or remove the file."
        )


def read_template(folder: Path) -> Template:
    manifest = read_manifest(folder / MANIFEST_FILE)
    try:
        spec = (folder / SPEC_FILE).read_bytes()
    except OSError as e:
        raise ConfigError(f"{folder} is not a whole page template: {e}") from None
    if hashlib.sha256(spec).hexdigest() != manifest.spec_sha256:
        raise ConfigError(
            f"{folder}/{SPEC_FILE} is not the one that the manifest names: make the template again."
        )
    return Template(spec, manifest)


def write_package(folder: Path, spec: bytes, image: Image) -> None:
    """A .mlpackage as coremltools lays it out."""
    data = folder / "Data" / "com.apple.CoreML"
    (data / "weights").mkdir(parents=True)
    (data / "model.mlmodel").write_bytes(spec)
    with (data / "weights" / "weight.bin").open("wb") as file:
        file.write(image.data)

    def item(name: str, description: str) -> dict[str, str]:
        path = f"com.apple.CoreML/{name}"
        return {"author": "com.apple.CoreML", "description": description, "name": name, "path": path}

    items = {
        _MODEL_ID: item("model.mlmodel", "CoreML Model Specification"),
        _WEIGHTS_ID: item("weights", "CoreML Model Weights"),
    }
    index = {"fileFormatVersion": "1.0.0", "itemInfoEntries": items, "rootModelIdentifier": _MODEL_ID}
    (folder / "Manifest.json").write_text(json.dumps(index, indent=4))


def page_errors(
    template: Template,
    image: Image,
    k: npt.NDArray[Any],
    v: npt.NDArray[Any],
    exponents: npt.NDArray[np.int16],
    scale: float,
    predict: Predict | None = None,
) -> Errors:
    """The errors of a patched page for queries that look at all of it and at single rows.

    predict: what runs the page; the interpreter unless given.
    """
    shape = template.manifest.shape
    tokens = min(PAGE_TEST_TOKENS, shape.query_tokens)
    _, _, q = made_up(shape, SELF_TEST_SEED, 1, 1)
    q = np.repeat(q, tokens, axis=1)
    # The longest key of a head has the most to lose. It is asked for so that it outweighs the others, then so that it
    # weighs about as much as they do together.
    for token, score in ((1, 20.0), (2, float(np.log(k.shape[1])) + 1)):
        for head in range(shape.q_heads if token < tokens else 0):
            row = longest_key(k[head // shape.group])
            q[head, token] = row * np.float32(score / max(float(row @ row) * scale, 1e-6))
    truth = attend64(k, v, q, scale)
    predict = predict or Interpreter(template.spec, image).predict
    return measure(predict, template.manifest, exponents, q, scale, truth)


def longest_key(k: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Of one kv head's [rows, head_dim]."""
    wide = widen(k)
    row: npt.NDArray[np.float32] = wide[int(np.einsum("rc,rc->r", wide, wide).argmax())]
    return row


def bake_page(
    template: Template,
    k: npt.NDArray[Any],
    v: npt.NDArray[Any],
    folder: Path,
    o_rel_max: float = O_REL_MAX,
    check: bool = True,
) -> PageRecord:
    """Writes `folder`/page.mlpackage and page.json of rows k, v: [kv_heads, filled, head_dim].

    Raises BakeRefused, and leaves nothing, if the page's self-test in the interpreter exceeds its tolerance.
    """
    manifest = template.manifest
    if folder.exists():
        raise ConfigError(f"{folder} exists already; name a new folder.")
    image = new_image(manifest)
    exponents = patch(manifest, image, k, v)
    errors = None
    if check:
        scale = manifest.self_test.scale if manifest.self_test else manifest.shape.head_dim**-0.5
        errors = page_errors(template, image, k, v, exponents, scale)
        require(errors, o_rel_max)
    page = PageRecord(
        spec_sha256=manifest.spec_sha256,
        weights_sha256=hashlib.sha256(image.data).hexdigest(),
        filled=k.shape[1],
        exponents=exponents.tolist(),
        errors=errors,
    )
    # Whole or not at all: a folder of this name is a page that can be loaded.
    partial = folder.with_name(f"{folder.name}.part-{secrets.token_hex(4)}")
    try:
        write_package(partial / PACKAGE, template.spec, image)
        (partial / PAGE_FILE).write_text(json.dumps(asdict(page)) + "\n")
        partial.rename(folder)
    except OSError as e:
        shutil.rmtree(partial, ignore_errors=True)
        raise ConfigError(f"The page cannot be written to {folder}: {e}") from None
    return page
