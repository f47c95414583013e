"""Lets the process have more files open at once."""

import contextlib

# A baked page has one: its mapped weight.bin. macOS starts a process with 256, which sockets and libraries want some
# of; a context of a million positions at 64 layers is 4,096 pages of 16,384.
OPEN_FILES = 4_096 + 256


def allow_open_files() -> None:
    """Where the system does not let us, it stays as it is: a page that cannot be opened is tried again later."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
