"""The wheel has what a user needs, the tree names no machine, and without the C part everything still works."""

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.processes import ROOT, ask, environment, run, serve

BUILD_S = 300.0

# What the wheel is made of. Copied, so that a build leaves nothing in the tree.
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "backburner")

IGNORED = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")


def copy_sources(folder: Path) -> Path:
    folder.mkdir()
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=IGNORED)
        else:
            shutil.copy(source, folder / name)
    return folder


def c_compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """Built as a user would, with the build tools that pyproject.toml asks for."""
    folder = tmp_path_factory.mktemp("wheel")
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode:
        pytest.skip("no pip in this environment")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--disable-pip-version-check"]
    command += ["--wheel-dir", str(folder), str(copy_sources(folder / "sources"))]
    environ = environment(PIP_RETRIES="1", PIP_TIMEOUT="10", PIP_NO_INPUT="1")
    built = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, env=environ)
    if built.returncode and re.search(r"No matching distribution|Could not find a version", built.stderr):
        pytest.skip(f"the build tools cannot be fetched: {built.stderr.strip().splitlines()[-1]}")
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_the_wheel_has_every_module_and_the_type_marker(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "backburner").rglob("*.py")}
    assert modules <= names
    assert "backburner/py.typed" in names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "build/"))]


def test_the_embedded_model_is_in_the_wheel_byte_for_byte(wheel: zipfile.ZipFile) -> None:
    files = sorted((ROOT / "backburner/model/tiny").iterdir())
    assert {"model.safetensors", "tokenizer.json", "config.json"} <= {path.name for path in files}
    for path in files:
        assert wheel.read(f"backburner/model/tiny/{path.name}") == path.read_bytes(), path.name


def test_the_c_part_is_in_the_wheel_when_there_is_a_compiler(wheel: zipfile.ZipFile) -> None:
    if c_compiler() is None:
        pytest.skip("no C compiler here")
    built = {re.sub(r"\..*", "", name) for name in wheel.namelist() if name.endswith((".so", ".pyd"))}
    sources = re.findall(r'"backburner\.native\.(\w+)"', (ROOT / "setup.py").read_text())
    assert sources
    assert built == {f"backburner/native/{name}" for name in sources}


def test_the_console_script_and_the_dependencies_are_declared(wheel: zipfile.ZipFile) -> None:
    (info,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    assert "backburner = backburner.cli:main" in wheel.read(f"{info}/entry_points.txt").decode()
    metadata = wheel.read(f"{info}/METADATA").decode()
    for package in ("fastapi", "mlx-lm", "numpy", "typer", "msgpack", "xxhash", "psutil", "rich"):
        assert re.search(rf"^Requires-Dist: {package}\b", metadata, re.MULTILINE), package
    assert any(name.startswith(f"{info}/") and name.endswith("LICENSE") for name in wheel.namelist())


@pytest.mark.parametrize(
    ("python", "system", "machine", "wanted"),
    [
        ("3.11", "linux", "x86_64", True),
        ("3.13", "darwin", "arm64", True),
        ("3.13", "linux", "aarch64", False),
        ("3.14", "linux", "x86_64", False),
        ("3.14", "darwin", "arm64", False),
    ],
)
def test_coremltools_is_asked_for_where_it_has_wheels(
    python: str, system: str, machine: str, wanted: bool
) -> None:
    place = {"python_version": python, "sys_platform": system, "platform_machine": machine}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in ("dev", "coreml"):
        (one,) = (Requirement(text) for text in extras[extra] if text.startswith("coremltools"))
        assert one.marker is not None
        assert one.marker.evaluate(place) == wanted


def test_the_installed_wheel_runs_from_anywhere(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path / "site")
    where = "import backburner; print(backburner.__file__)"
    env = environment(PYTHONPATH=str(tmp_path / "site"))
    found = subprocess.run(
        [sys.executable, "-c", where], capture_output=True, text=True, cwd=tmp_path, env=env
    )
    assert Path(found.stdout.strip()).is_relative_to(tmp_path)
    with serve("--device", "loopback", cwd=tmp_path, PYTHONPATH=str(tmp_path / "site")) as server:
        assert "4821" in ask(server)
        if c_compiler() is not None:
            assert server.health()["worker"]["engine"] in ("native", "mlx")


def test_make_puts_pip_into_a_half_made_environment_and_makes_a_broken_one_anew(tmp_path: Path) -> None:
    if shutil.which("make") is None or importlib.util.find_spec("ensurepip") is None:
        pytest.skip("no make here, or a Python without ensurepip (Debian: apt install python3-venv)")

    def repaired() -> None:
        text = f"include {ROOT / 'Makefile'}\nprobe:\n\t$(call venv,.venv)\n"
        command = ["make", "-f", "-", "probe", f"PYTHON={sys.executable}"]
        subprocess.run(command, input=text, text=True, cwd=tmp_path, check=True, timeout=BUILD_S)
        pip = subprocess.run([tmp_path / ".venv/bin/python", "-m", "pip", "--version"], capture_output=True)
        assert str(tmp_path).encode() in pip.stdout

    # What an interrupted `python -m venv` leaves, and what uv makes.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True)
    (kept := tmp_path / ".venv/kept").touch()
    repaired()
    assert kept.exists()
    # A Python that was upgraded leaves links to nothing.
    for link in (tmp_path / ".venv/bin").glob("python*"):
        link.unlink()
    (tmp_path / ".venv/bin/python").symlink_to("/nonexistent/python")
    repaired()


def test_no_file_of_the_tree_names_a_machine() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    # Homes, and folders that only exist where this was written.
    machine = re.compile(
        rb"/(?:home|Users)/[a-z][\w.-]+/|/root/\w|/work/[a-z]|/private/(?:tmp|var)/|[CD]:\\\\?Users"
    )
    found = [
        f"{name}: {match[0].decode()}"
        for name in listed.stdout.decode().split("\0")
        if name and (ROOT / name).is_file() and (match := machine.search((ROOT / name).read_bytes()))
    ]
    assert not found


@pytest.fixture(scope="module")
def without_c(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as a machine without a compiler has it."""
    return copy_sources(tmp_path_factory.mktemp("plain") / "sources")


def test_without_the_c_part_a_server_and_its_worker_answer_and_say_so(without_c: Path) -> None:
    """On macOS MLX serves attention, and there is nothing to say."""
    with serve("--device", "none") as server:
        expected = ask(server)
    with serve("--device", "loopback", cwd=without_c, PYTHONPATH=str(without_c)) as server:
        assert ask(server) == expected
        health = server.health()
        assert health["worker"]["held_pages"] > 0
        if sys.platform == "linux":
            assert health["worker"]["engine"] == "numpy"
            (line,) = [line for line in server.output.splitlines() if "slower" in line]
            for part in ("_recurrent", "_gating", "_kernels", "_blas"):
                assert f"the C part {part} was not built" in line
            assert "With a C compiler, reinstall backburner" in line


@pytest.mark.skipif(importlib.util.find_spec("mlx_metal") is not None, reason="the C part is not used here")
def test_without_the_c_part_the_native_engine_is_refused_by_name(without_c: Path) -> None:
    for arguments in (["serve", "--port", "0", "--engine", "native"], ["worker", "--engine", "native"]):
        done = run(*arguments, cwd=without_c, PYTHONPATH=str(without_c))
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert "the native attention engine is not available" in line
        assert "install a C compiler" in line
