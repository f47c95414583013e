"""The commands `backburner devices` and `backburner doctor`."""

from typing import TYPE_CHECKING, Annotated

import typer

from backburner import config as c

if TYPE_CHECKING:
    from backburner.look import Reach


def add_commands(app: typer.Typer, reach: "Reach") -> None:
    """Puts both into the application."""

    @app.command()
    def devices(
        device: Annotated[
            list[str] | None,
            typer.Option(help="Also look at this one, e.g. tcp://127.0.0.1:50060; may be repeated."),
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
    ) -> None:
        """Lists what is plugged in, how fast its cable is, and what a worker on it says."""
        named = [c.parse_device(text) for text in device or []]
        from backburner.look import show_devices

        show_devices(named, as_json, reach)

    @app.command()
    def doctor(
        device: Annotated[
            str | None,
            typer.Option(help="The worker to examine, as for `serve`. Default: what is plugged in."),
        ] = None,
        spill_dir: Annotated[str | None, typer.Option(help="As for `serve`.")] = None,
        spill_size: Annotated[str, typer.Option(help="As for `serve`.")] = c.SPILL_SIZE,
        as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
    ) -> None:
        """Checks everything from Python to the worker; status 1 if something is wrong, with what to do about it."""
        named = None if device is None else c.parse_device(device)
        spill_bytes = c.parse_bytes(spill_size)
        from backburner.look import show_examination

        raise typer.Exit(1 if show_examination(named, spill_dir, spill_bytes, as_json, reach) else 0)
