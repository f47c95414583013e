"""A folder that is this process's alone, and the removal of those that a crash has left."""

import contextlib
import logging
import os
import secrets
import shutil
from pathlib import Path

from backburner.disk import make_locked, take_lock

log = logging.getLogger("backburner.kv")

_PREFIX = "host-"
_LOCK = "lock"


class PrivateFolder:
    """A sub-folder of `parent` that lives until `remove`, or until another process finds its lock free.

    The pid in the name is for people only.
    """

    def __init__(self, parent: Path) -> None:
        """Raises OSError."""
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        sweep(parent)
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self.path = parent / f"{_PREFIX}{name}"
        self._lock = make_locked(parent / f"new-{name}", self.path, _LOCK)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def sweep(parent: Path) -> None:
    """Removes the private folders whose process is gone. What cannot be removed stays."""
    for folder in parent.glob(f"{_PREFIX}*"):
        if folder.is_symlink():
            continue
        with contextlib.suppress(OSError):  # held by a living process, or swept by another this moment
            lock = take_lock(folder / _LOCK)
            try:
                log.info("removing the spilled pages that a crash has left: %s", folder)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
