"""Folders on disk: names made durable, and folders that a living process holds by a lock in them.

The lock is flock's: it ends with its process however that ends, and means the same in every container that shares
the folder.
"""

import fcntl
import os
import shutil
from pathlib import Path


def to_disk(path: Path) -> None:
    """Forces a file to the disk; of a folder, its list of names. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_locked(unlocked: Path, folder: Path, lock_name: str) -> int:
    """Makes `folder`, for its owner alone, by way of the name `unlocked` beside it; returns its lock's descriptor.

    It gets its final name only once it is locked, or another process would sweep it in between.
    Raises OSError, and leaves nothing, if it is there already or cannot be made.
    """
    unlocked.mkdir(mode=0o700)
    lock = None
    try:
        lock = take_lock(unlocked / lock_name, os.O_CREAT | os.O_EXCL)
        unlocked.rename(folder)
    except OSError:
        shutil.rmtree(unlocked, ignore_errors=True)
        if lock is not None:
            os.close(lock)
        raise
    return lock


def take_lock(path: Path, flags: int = 0) -> int:
    """The descriptor that holds the lock until it is closed. Raises OSError: BlockingIOError if a process has it."""
    lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock
