"""The command `backburner bench bake`: what a device's owner measures once."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from backburner import config as c
from backburner.errors import ConfigError

app = typer.Typer(help="Measures this machine.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """With a callback, `bake` stays a command of its own name though it is the only one."""


@app.command()
def bake(
    engine: Annotated[str, typer.Option(help="baked (macOS) or baked-sim.")] = "baked",
    attention: Annotated[
        str, typer.Option(help="Query heads, K/V heads and channels of a head of the host's model.")
    ] = "24,4,256",
    page_tokens: Annotated[int, typer.Option(help="Positions in the host's page.")] = c.PAGE_TOKENS,
    bake_tokens: Annotated[int, typer.Option(help="Positions in a baked page.")] = c.BAKE_TOKENS,
    dtype: Annotated[str, typer.Option(help="Of K and V: bfloat16, float16 or float32.")] = "bfloat16",
    runs: Annotated[int, typer.Option(help="The longest context, in baked pages.")] = 4,
    rounds: Annotated[int, typer.Option(help="Medians are over so many rounds.")] = 20,
    bake_dir: Annotated[
        str | None,
        typer.Option(help="The worker's --bake-dir, where the share is written; none: only printed."),
    ] = None,
) -> None:
    """Measures baked pages and the ordinary engine in turn, and writes the share that baked pages are to serve."""
    from backburner.attention.baked import BakedEngine
    from backburner.attention.engine import Geometry
    from backburner.attention.numpy_engine import STORAGE_DTYPES
    from backburner.attention.select import BAKED_NAMES, make_engine
    from backburner.cli_bake import attention_numbers
    from backburner.coreml.runtime import PageRuntime, SimulatedRuntime
    from backburner.worker.bake_calibration import calibrate
    from backburner.worker.bake_share import write_share
    from backburner.worker.bake_template import ready_template, shape_for, shape_name
    from backburner.worker.baker import check_run

    if engine not in BAKED_NAMES or dtype not in STORAGE_DTYPES or min(runs, rounds, page_tokens) < 1:
        raise ConfigError(
            "bench bake wants --engine baked or baked-sim, a --dtype, and --runs, --rounds and --page-tokens from 1."
        )
    c.check_bake_tokens(bake_tokens)
    q_heads, kv_heads, head_dim = attention_numbers(attention)
    geometry = Geometry(q_heads, kv_heads, head_dim, page_tokens, dtype, head_dim**-0.5)
    check_run(geometry, bake_tokens)
    runtime: PageRuntime = SimulatedRuntime()
    if engine == "baked":
        from backburner.coreml.device import DeviceRuntime

        runtime = DeviceRuntime()
    both = make_engine(engine)
    assert isinstance(both, BakedEngine)
    shape = shape_for(geometry, bake_tokens, "float16")
    folder = c.bake_folder(bake_dir)
    if folder is not None:
        _check_writable(folder)
    with tempfile.TemporaryDirectory() as passing:
        place = Path(passing) if folder is None else folder / "templates"
        template = ready_template(shape, place / shape_name(shape), runtime)
        share, trials = calibrate(both, geometry, template, runtime, runs, rounds, Path(passing))
    for trial in trials:
        times = "  ".join(f"{n}: {ms:.2f}" for n, ms in enumerate(trial.at_ms))
        print(f"{trial.keys:>7} keys, {trial.tokens} tokens; ms by baked pages  {times}")
    print(f"share for one token {share.one:.2f}, for more {share.many:.2f}")
    if folder is not None:
        measured: dict[str, object] = {f"{t.keys}x{t.tokens}": list(t.at_ms) for t in trials}
        print(f"written to {write_share(folder, engine, both.ordinary.name, share, measured)}")


def _check_writable(folder: Path) -> None:
    """Before the measuring, which takes minutes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as e:
        raise ConfigError(f"--bake-dir {folder} cannot be written: {e}") from None
