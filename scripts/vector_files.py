"""How the scripts that make golden files write them."""

import sys
from pathlib import Path

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
