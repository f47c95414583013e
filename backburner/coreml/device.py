"""Runs baked pages with Core ML on a Mac, on its CPU and Neural Engine. Not yet run on a device."""

import platform
import plistlib
import sys
from pathlib import Path
from typing import Any

from backburner.coreml.blob import Image
from backburner.coreml.manifest import Manifest
from backburner.coreml.package import PACKAGE
from backburner.coreml.selftest import Predict
from backburner.coreml.spec import coremltools
from backburner.errors import BakeRefused, ConfigError

# Core ML caches what it specialised for the Neural Engine by the full path of the compiled model, so it has a place of
# its own beside the package, and keeps it.
COMPILED = "page.mlmodelc"

SYSTEM_VERSION = Path("/System/Library/CoreServices/SystemVersion.plist")


class DeviceRuntime:
    """`--engine baked`. Prediction through coremltools; the GPU is left to the ordinary engine."""

    name = "baked"
    needs_package = True

    def __init__(self) -> None:
        """Raises ConfigError where Core ML cannot run."""
        if sys.platform != "darwin":
            raise ConfigError("--engine baked needs macOS; --engine baked-sim runs everywhere.")
        self._coremltools: Any = coremltools()
        self.build = _system_build()

    def load(self, manifest: Manifest, image: Image, folder: Path | None) -> Predict:
        if folder is None:
            raise BakeRefused("Core ML loads pages from files: give --bake-dir a folder.")
        ct = self._coremltools
        compiled = folder / COMPILED
        if not compiled.is_dir():
            ct.models.utils.compile_model(str(folder / PACKAGE), str(compiled))
        model = ct.models.CompiledMLModel(str(compiled), compute_units=ct.ComputeUnit.CPU_AND_NE)

        def predict(inputs: dict[str, Any]) -> dict[str, Any]:
            outputs: dict[str, Any] = model.predict(inputs)
            return outputs

        return predict


def _system_build() -> str:
    """Such as 24A335: Core ML and the Neural Engine's compiler are parts of the system."""
    try:
        return str(plistlib.loads(SYSTEM_VERSION.read_bytes())["ProductBuildVersion"])
    except (OSError, KeyError, ValueError):
        return platform.mac_ver()[0]
