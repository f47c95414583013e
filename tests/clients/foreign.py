"""Clients that cannot share our environment: a virtual environment of their own, or node."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
INSTALL_S = 300.0


def _install(folder: Path, what: str, *commands: list[str]) -> None:
    """Once for each cache folder. Skips the test, and says why, where the packages cannot be had."""
    done = folder / "installed"
    if done.exists():
        return
    for command in commands:
        try:
            subprocess.run(
                command,
                cwd=folder,
                check=True,
                timeout=INSTALL_S,
                capture_output=True,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.CalledProcessError as e:
            lines = [
                line for line in e.stderr.decode(errors="replace").splitlines() if "error" in line.lower()
            ]
            pytest.skip(f"{what} cannot be installed here: {(lines or ['no message'])[0][:200]}")
        except (OSError, subprocess.TimeoutExpired) as e:
            pytest.skip(f"{what} cannot be installed here: {e}")
    done.touch()


def python_with(config: pytest.Config, requirement: str) -> Path:
    """The interpreter of an environment that has the requirement and nothing of ours."""
    assert config.cache is not None
    folder = config.cache.mkdir("clients-" + requirement.replace("==", "-"))
    python = folder / "venv" / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1"]
    _install(folder, requirement, [sys.executable, "-m", "venv", "--clear", "venv"], [*pip, requirement])
    return python


def _node_with(config: pytest.Config, *packages: str) -> Path:
    """A folder whose scripts can import the packages."""
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool} here")
    assert config.cache is not None
    folder = config.cache.mkdir("clients-" + packages[0].replace("/", "-"))
    (folder / "package.json").write_text('{"private": true, "type": "module"}')
    npm = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1"]
    _install(folder, " ".join(packages), [*npm, *packages])
    return folder


def observe_node(
    config: pytest.Config, script: str, packages: Sequence[str], *arguments: object
) -> dict[str, Any]:
    """What one of our scripts tells of the packages."""
    folder = _node_with(config, *packages)
    copy = folder / "play.mjs"  # node looks for packages beside the script
    copy.write_text((SCRIPTS / script).read_text())
    return observe(["node", str(copy)], folder, *arguments)


def observe(command: list[str], cwd: Path, *arguments: object) -> dict[str, Any]:
    """What a script tells of itself: one JSON object, its last line."""
    done = subprocess.run(
        [*command, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))
