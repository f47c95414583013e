"""How the scripts that make golden files write them, and how tensors in them are read."""

import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from backburner.transport import fields as wire

DTYPES = {**wire.DTYPES, "int16": np.dtype("<i2")}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
VECTORS = Path(__file__).resolve().parent.parent / "tests" / "vectors"


def write_folder(folder: Path, wanted: dict[str, bytes]) -> None:
    """The folder has these files by name afterwards, and no other."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.name not in wanted:
            path.unlink()
    for name, data in wanted.items():
        (folder / name).write_bytes(data)
    print(f"{len(wanted)} files", file=sys.stderr)


def as_json(value: Any) -> Any:
    """A field's value: bytes as {"hex"}, a tensor as {"dtype", "shape", "hex"}."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, np.ndarray):
        return {
            "dtype": DTYPE_NAMES[value.dtype],
            "shape": list(value.shape),
            "hex": value.tobytes().hex(),
        }
    if is_dataclass(value):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [as_json(item) for item in value]
    return value


def from_json(tensor: dict[str, Any]) -> np.ndarray:
    """A tensor that `as_json` has written; bfloat16 as its bits."""
    return np.frombuffer(bytes.fromhex(tensor["hex"]), DTYPES[tensor["dtype"]]).reshape(tensor["shape"])
