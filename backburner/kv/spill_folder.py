"""A folder that is this process's alone, and the removal of those that a crash has left."""

import contextlib
import fcntl
import logging
import os
import secrets
import shutil
from pathlib import Path

log = logging.getLogger("backburner.kv")

_PREFIX = "host-"
_LOCK = "lock"


class PrivateFolder:
    """A sub-folder of `parent` that lives until `remove`, or until another process finds its lock free.

    The lock is flock's, which ends with its process however that ends; the pid in the name is for people only.
    """

    def __init__(self, parent: Path) -> None:
        """Raises OSError."""
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        sweep(parent)
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
        # Under its final name only once it is locked, or another process would sweep it in between.
        unlocked = parent / f"new-{name}"
        unlocked.mkdir(mode=0o700)
        try:
            self._lock = _open_lock(unlocked, os.O_CREAT | os.O_EXCL)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.path = unlocked.rename(parent / f"{_PREFIX}{name}")
        except OSError:
            shutil.rmtree(unlocked, ignore_errors=True)
            raise

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def sweep(parent: Path) -> None:
    """Removes the private folders whose process is gone. What cannot be removed stays."""
    for folder in parent.glob(f"{_PREFIX}*"):
        if folder.is_symlink():
            continue
        with contextlib.suppress(OSError):  # held by a living process, or swept by another this moment
            lock = _open_lock(folder)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                log.info("removing the spilled pages that a crash has left: %s", folder)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _open_lock(folder: Path, flags: int = 0) -> int:
    return os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600)
