"""The application `backburner`: its commands, and how it ends when something is wrong."""

import os
import sys
from typing import Annotated

import typer

from backburner import __version__
from backburner.cli_bake import app as bake_app
from backburner.cli_bench import app as bench_app
from backburner.cli_devices import add_commands
from backburner.cli_pair import pair
from backburner.cli_reach import reach
from backburner.cli_serve import serve
from backburner.cli_worker import worker
from backburner.errors import BackburnerError

app = typer.Typer(
    help="An OpenAI-compatible server for Qwen hybrid models that uses a second device on a cable as a coprocessor.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"auto_envvar_prefix": "BACKBURNER", "help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """The console script: our own errors become one line and exit status 2, never a traceback."""
    # One thread for OpenBLAS: several of them and MLX's own fight for the cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        app()
    except BackburnerError as e:
        print(f"backburner: {e}", file=sys.stderr)
        sys.exit(2)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"backburner {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


# `backburner --help` shows the groups first, then the commands in this order.
app.add_typer(bake_app, name="bake")
app.add_typer(bench_app, name="bench")
app.command()(serve)
add_commands(app, reach)
app.command()(worker)
app.command()(pair)
