"""Page programs for the geometries of hosts: made once, by another process, and tried on this machine's runtime."""

import contextlib
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from backburner.attention.engine import Geometry
from backburner.coreml.blob import new_image, patch
from backburner.coreml.manifest import TEMPLATE_VERSION
from backburner.coreml.package import MANIFEST_FILE, Template, read_template
from backburner.coreml.runtime import PageRuntime
from backburner.coreml.selftest import attend64, made_up, measure, require
from backburner.coreml.shape import PageShape
from backburner.disk import to_disk
from backburner.errors import BakeRefused, ConfigError

log = logging.getLogger("backburner.worker")

# Query columns of a program: ten tokens of a model with six query heads for each K/V head. Devices like multiples of
# 32.
COLUMNS = 64

# Rows of K in one convolution: 2 MiB at 256 channels.
BLOCK_TOKENS = 4_096

# 7 s of one core with coremltools, for 16,384 rows; a busy machine may need many times that.
MAKE_DEADLINE_S = 900.0

# What is being made. Nobody still does after twice the deadline, in whatever container.
UNFINISHED = re.compile(r"\.[0-9a-f]{32}-[0-9a-f]+")
ABANDONED_S = 2 * MAKE_DEADLINE_S


def shape_for(geometry: Geometry, baked_tokens: int, weights: str) -> PageShape:
    """The program's numbers. Raises ConfigError for what no program can be built for."""
    group = geometry.q_heads // geometry.kv_heads
    block = min(BLOCK_TOKENS, baked_tokens)
    return PageShape(
        q_heads=geometry.q_heads,
        kv_heads=geometry.kv_heads,
        head_dim=geometry.head_dim,
        page_tokens=baked_tokens,
        block_tokens=block if baked_tokens % block == 0 else baked_tokens,
        columns=max(COLUMNS, group),
        estimate=weights == "float16",
        weights=weights,
    )


def shape_name(shape: PageShape) -> str:
    text = json.dumps({"version": TEMPLATE_VERSION, **asdict(shape)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def ready_template(shape: PageShape, folder: Path, runtime: PageRuntime) -> Template:
    """The template in `folder`, made if it is not there, after it has passed its self-test in this runtime.

    Raises BakeRefused if it does not pass, ConfigError if it cannot be made, OSError.
    """
    _sweep(folder.parent)
    template = None
    if (folder / MANIFEST_FILE).exists():
        try:
            template = _read(shape, folder)
        except ConfigError as e:
            log.warning("a page program on disk is damaged and will be made again: %s", e)
    if template is None:
        _make(shape, folder)
        template = _read(shape, folder)
    _prove(template, folder, runtime)
    return template


def _read(shape: PageShape, folder: Path) -> Template:
    """Raises ConfigError."""
    template = read_template(folder)
    if template.manifest.shape != shape or template.manifest.self_test is None:
        raise ConfigError(f"{folder} has a template of another shape, or no self-test.")
    return template


def _sweep(templates: Path) -> None:
    """Removes what makers that were killed have left."""
    for folder in templates.glob(".*"):
        with contextlib.suppress(OSError):
            if UNFINISHED.fullmatch(folder.name) and time.time() - folder.stat().st_mtime > ABANDONED_S:
                shutil.rmtree(folder, ignore_errors=True)


def _make(shape: PageShape, folder: Path) -> None:
    """In another process: it is all Python, and would keep this one's other threads from running."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}-{secrets.token_hex(8)}")
    command = [
        *(sys.executable, "-P", "-m", "backburner", "bake", "template", "--output", str(partial)),
        *("--attention", f"{shape.q_heads},{shape.kv_heads},{shape.head_dim}"),
        *("--bake-tokens", str(shape.page_tokens), "--block-tokens", str(shape.block_tokens)),
        *("--columns", str(shape.columns), "--weights", shape.weights),
    ]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=MAKE_DEADLINE_S,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        )
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["nothing was said"]
            raise ConfigError(f"the page program was not made: {lines[-1].removeprefix('backburner: ')}")
        # A power cut must not leave a template whose name is on the disk and whose bytes are not.
        for path in (*partial.iterdir(), partial):
            to_disk(path)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
        to_disk(folder.parent)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"the page program was not made within {MAKE_DEADLINE_S:g} s.") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    log.info("made the page program of %d positions", shape.page_tokens)


def _prove(template: Template, folder: Path, runtime: PageRuntime) -> None:
    manifest, test = template.manifest, template.manifest.self_test
    assert test is not None, "_read refuses a template without one"
    k, v, q = made_up(manifest.shape, test.seed, test.filled, test.tokens)
    image = new_image(manifest)
    exponents = patch(manifest, image, k, v)
    package = None
    if runtime.needs_package:
        from backburner.coreml.package import PACKAGE, write_package

        package = folder / "proof"
        shutil.rmtree(package, ignore_errors=True)
        write_package(package / PACKAGE, template.spec, image)
    try:
        predict = runtime.load(manifest, image, package)
        errors = measure(predict, manifest, exponents, q, test.scale, attend64(k, v, q, test.scale))
        require(errors, test.o_rel_max, test.lse_abs_max)
    except BakeRefused as e:
        raise BakeRefused(f"This machine's {runtime.name} cannot be trusted with pages. {e}") from None
    finally:
        if package is not None:
            shutil.rmtree(package, ignore_errors=True)
