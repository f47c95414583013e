"""What runs a baked page: the simulation everywhere, Core ML on a Mac."""

from pathlib import Path
from typing import Protocol

from backburner.coreml.blob import Image
from backburner.coreml.interpreter import Rounding
from backburner.coreml.manifest import Manifest
from backburner.coreml.selftest import Predict
from backburner.coreml.simulate import SimulatedPage


class PageRuntime(Protocol):
    """Loads baked pages. One thread loads at a time; what it gives may be called by any thread, one at a time."""

    @property
    def name(self) -> str:
        """Part of a baked page's name: a page that passed its self-test in one runtime has not passed it in another."""
        ...

    @property
    def build(self) -> str:
        """Part of it, too: of the system, where a page is compiled by it. An update may compile it otherwise."""
        ...

    @property
    def needs_package(self) -> bool:
        """Whether `load` wants a folder with page.mlpackage, rather than the bytes of weight.bin."""
        ...

    def load(self, manifest: Manifest, image: Image, folder: Path | None) -> Predict:
        """The page, ready to be asked. Raises BackburnerError, OSError, MemoryError or what Core ML raises."""
        ...


class SimulatedRuntime:
    """`--engine baked-sim`: the same arithmetic in numpy. It shows that all of baking works, and gains nothing."""

    name = "baked-sim"
    build = ""
    needs_package = False

    def __init__(self, rounding: Rounding | None = None) -> None:
        self._rounding = rounding

    def load(self, manifest: Manifest, image: Image, folder: Path | None) -> Predict:
        return SimulatedPage(manifest, image, self._rounding).predict
