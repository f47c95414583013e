"""Files and folders on disk: how many may be open, names made durable, folders that a living process holds by a lock.

The lock is flock's: it ends with its process however that ends, and means the same in every container that shares
the folder.
"""

import contextlib
import fcntl
import os
import resource
import shutil
from pathlib import Path

# A mapped page has one: a worker's baked one, or a copy on the host's disk that has been asked for. macOS starts a
# process with 256, which sockets and libraries want some of; a context of a million positions at 64 layers is 4,096
# baked pages of 16,384.
OPEN_FILES = 4_096 + 256


def allow_open_files() -> None:
    """Where the system does not let us, it stays as it is: a page that cannot be opened is tried again later."""
    with contextlib.suppress(OSError, ValueError):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


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
