"""Checks of this machine: Python, what was compiled, matrix products, memory, disk."""

import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path

from backburner.doctor.check import Patient, Result, failed, passed, skipped

PYTHON_MIN = (3, 11)

# The embedded model with its libraries takes 0.4 GB; nothing runs in less.
MEMORY_MIN = 512 * 1024 * 1024

REINSTALL = "install a C compiler, then rm .venv/.installed && make setup"


def python(patient: Patient) -> Result:
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < PYTHON_MIN:
        return failed(text, f"install Python {'.'.join(map(str, PYTHON_MIN))} or newer")
    return passed(text)


def native_parts(patient: Patient) -> Result:
    from backburner.native import gating, kernels, recurrent

    parts = {"attention": kernels, "recurrent layer": recurrent, "gates": gating}
    missing = [f"{name}: {why}" for name, part in parts.items() if (why := part.why_missing())]
    if missing:
        return failed("; ".join(missing), REINSTALL)
    return passed(", ".join(parts))


def matrix_products(patient: Patient) -> Result:
    from backburner.native.blas import forward_blas

    status = forward_blas()  # has to come before MLX
    try:
        import mlx.core as mx
    except (ImportError, OSError) as e:
        return failed(f"MLX cannot be imported: {e}", "pip install --force-reinstall mlx mlx-lm")
    text = f"mlx {importlib.metadata.version('mlx')}"
    if mx.default_device() != mx.cpu:
        return passed(f"{text} on the GPU")
    if not status.forwarded:
        return failed(f"{text} on the CPU with its own BLAS, because {status.reason}", REINSTALL)
    return passed(f"{text} on the CPU, matrix products by OpenBLAS")


def memory(patient: Patient) -> Result:
    import psutil

    machine = psutil.virtual_memory()
    text = f"{_gib(machine.available)} free of {_gib(machine.total)}"
    if machine.available < MEMORY_MIN:
        return failed(text, "close other programs")
    return passed(text)


def spill(patient: Patient) -> Result:
    folder = patient.spill_folder
    if folder is None:
        return skipped("no spill: a lost worker ends the conversations whose pages it holds")
    there = _existing(folder)
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(4096))
            file.flush()
        free = shutil.disk_usage(there).free
    except OSError as e:
        return failed(f"{folder}: {e}", "give a folder that this user may write to: --spill-dir FOLDER")
    text = f"{folder} is writable, {_gib(free)} free"
    if free < patient.spill_bytes:
        return failed(
            f"{text}, less than --spill-size {_gib(patient.spill_bytes)}",
            "free some space, or give another --spill-dir or a smaller --spill-size",
        )
    return passed(text)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it: nothing is made that was not there."""
    folder = folder.absolute()
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
