"""Opens the C parts with ctypes and selects their instruction set."""

import ctypes
import functools
import importlib.util
import os
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

# Forces an instruction set ("generic", "avx2", "avx512") instead of the best one, for tests and comparisons.
ISA_VARIABLE = "BACKBURNER_ISA"


def path_of(name: str) -> str | None:
    """Where the C part `name` lies; None if it was not built."""
    spec = importlib.util.find_spec(f"backburner.native.{name}")
    return spec.origin if spec is not None else None


def wanted_isa() -> bytes | None:
    """The instruction set that is forced, or None for the best one."""
    return os.environ.get(ISA_VARIABLE, "").encode() or None


def _open_part(name: str) -> ctypes.CDLL | str:
    """The C part `name` with its instruction set selected; or why it cannot serve."""
    path = path_of(name)
    if path is None:
        return f"the C part {name} was not built"
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        return f"the C part {name} cannot be opened: {error}"
    library.bb_select_isa.argtypes = [ctypes.c_char_p]
    library.bb_select_isa.restype = ctypes.c_int
    if library.bb_select_isa(wanted_isa()):
        return f"{ISA_VARIABLE}={os.environ[ISA_VARIABLE]}: this CPU or build does not have it"
    return library


class Part(Generic[T]):
    """A C part, opened once for the process, when it is first asked for."""

    def __init__(self, name: str, typed: Callable[[ctypes.CDLL], T]) -> None:
        """typed: gives the opened library its types."""
        self._name = name
        self._typed = typed

    def load(self) -> T | None:
        """None if the part is missing, and why_missing() says why."""
        return self._opened[0]

    def why_missing(self) -> str:
        """Why load() gives None; empty if it does not."""
        return self._opened[1]

    @functools.cached_property
    def _opened(self) -> tuple[T | None, str]:
        library = _open_part(self._name)
        return (None, library) if isinstance(library, str) else (self._typed(library), "")
