"""The arrows of docs/architecture.md point one way, and asyncio and pydantic live only in api/."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "backburner"

# cli -> api -> engine -> model -> kv -> {attention, transport} -> {native, disk, config, errors}; a package may import
# itself and whatever stands in its set.
BASE = {"config", "errors", "backburner"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "disk": set(),
    "config": {"errors"},
    "native": {"errors", "config"},
    "attention": BASE | {"native", "coreml"},
    "transport": BASE | {"disk", "native"},
    "kv": BASE | {"disk", "attention", "transport"},
    "model": BASE | {"kv", "attention", "transport", "native"},
    # Pure arithmetic over measured figures: whoever asks it passes them in.
    "planner": {"errors", "config"},
    # A compiler of pages: arrays in, files out. Runs without the runtime, as its Swift mirror does.
    "coreml": {"errors", "config"},
    "cli_bake": BASE | {"coreml", "model"},
    "cli_bench": BASE | {"attention", "coreml", "worker", "cli_bake"},
    "engine": BASE | {"model", "kv", "attention", "transport", "native", "planner"},
    "worker": BASE | {"disk", "model", "kv", "attention", "transport", "native", "coreml"},
    "api": BASE | {"engine", "model"},
    "terminal": {"errors", "config"},
    # Looks at what there is; knows workers by their greeting only.
    "devices": BASE | {"transport", "planner"},
    "doctor": BASE | {"devices", "transport", "native", "planner"},
    "look": BASE | {"devices", "doctor", "transport"},
    "cli_devices": BASE | {"look"},
    "cli_reach": BASE | {"engine", "attention", "transport", "worker"},
    "cli_serve": BASE | {"cli_reach", "disk", "api", "engine", "model", "kv", "attention", "terminal"},
    "cli_pair": BASE | {"cli_reach", "transport"},
    "cli_worker": BASE
    | {"cli_pair", "disk", "worker", "model", "attention", "transport", "coreml", "terminal"},
    # Registers the commands; what they do is theirs.
    "cli": BASE
    | {"cli_bake", "cli_bench", "cli_devices", "cli_reach", "cli_serve", "cli_pair", "cli_worker"},
    "__main__": {"cli"},
    "__init__": set(),
}

MODULES = sorted(ROOT.rglob("*.py"))


def package_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return parts[0] if len(parts) > 1 else path.stem


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the arrow"
            assert node.module
            yield node.module
            if node.module == "backburner":
                yield from (f"backburner.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_downwards(path: Path) -> None:
    package = package_of(path)
    for name in imports(path):
        top, *rest = name.split(".")
        if top == "backburner":
            target = rest[0] if rest and rest[0] != "__version__" else "backburner"
            assert target == package or target in ALLOWED[package], f"{package} imports {name}"
        if top == "asyncio":
            assert package == "api", f"{path} uses asyncio outside api/"
        if top == "pydantic":
            assert package == "api", f"{path} uses pydantic outside api/"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_first_line_says_the_duty(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring, f"{path} does not say what it is for"


def test_worker_with_the_native_engine_needs_no_mlx() -> None:
    import subprocess
    import sys

    code = (
        "import sys; import backburner.worker.server, backburner.worker.loopback, backburner.cli;"
        "from backburner.attention.select import make_engine; make_engine('numpy');"
        "sys.exit('mlx.core' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
