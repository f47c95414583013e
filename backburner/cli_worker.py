"""The command `backburner worker`: what it listens on, whom it lets in, and what it answers with."""

import logging
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from backburner import config as c
from backburner.cli_pair import same_words, say, say_introduced, say_paired
from backburner.errors import ConfigError

if TYPE_CHECKING:
    from backburner.attention.engine import AttentionEngine
    from backburner.transport.channel import Channel, Door
    from backburner.transport.messages import Paired, PairKeys
    from backburner.transport.tcp import Listener
    from backburner.worker.baker import BakeSettings


def worker(
    listen: Annotated[
        str,
        typer.Option(help="The address to listen on, HOST:PORT; or ffs:FOLDER, a Linux gadget's FunctionFS."),
    ] = f"127.0.0.1:{c.WORKER_PORT}",
    memory: Annotated[str, typer.Option(help="The memory for pages, e.g. 2GiB.")] = "2GiB",
    engine: Annotated[
        str,
        typer.Option(
            help="Attention engine: auto, native, numpy or mlx; baked (macOS; not yet run on a device) or "
            "baked-sim (everywhere) make models of a share of the old pages, beside auto."
        ),
    ] = "auto",
    name: Annotated[
        str | None, typer.Option(help="How this worker is called. Default: the host name.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The host's model, to run layers of it: a folder, a Hugging Face id or `tiny`."),
    ] = None,
    slowdown: Annotated[
        float,
        typer.Option(help="Makes answers take this many times as long, for trying out asymmetric pairs."),
    ] = 1.0,
    pair: Annotated[
        bool,
        typer.Option(
            "--pair",
            help="First lets one host be paired, within two minutes: it runs `backburner pair tcp://THIS-MACHINE:PORT`.",
        ),
    ] = False,
    pair_cable: Annotated[
        bool,
        typer.Option(
            "--pair-cable",
            help="On 127.0.0.1 (usbmux, a tunnel of your own): whoever reaches it may be paired, without words, by "
            "`backburner pair`. Leave it out once that is done. ffs:FOLDER needs no flag.",
        ),
    ] = False,
    bake_tokens: Annotated[int, typer.Option(help="Positions in a baked page.")] = c.BAKE_TOKENS,
    bake_share: Annotated[
        float | None,
        typer.Option(
            help="The share of old keys that baked pages serve, 0 to 1. Default: a constant of the engine, "
            "or what was measured here (share.json in --bake-dir)."
        ),
    ] = None,
    bake_dir: Annotated[
        str | None,
        typer.Option(
            help="Where baked pages are kept for the next start. Default: the user's cache folder; none."
        ),
    ] = None,
    bake_size: Annotated[str, typer.Option(help="The most disk space for them.")] = c.BAKE_SIZE,
    bake_weights: Annotated[
        str, typer.Option(help="float16, or int8: half the size, and refused where it is too inexact.")
    ] = "float16",
    exit_with_parent: Annotated[
        bool, typer.Option("--exit-with-parent", hidden=True, help="Stop when standard input closes.")
    ] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Holds old K/V pages for a host and answers its queries over them; with --model it runs layers, too."""
    from backburner.terminal import configure_logging

    configure_logging(log_level)
    gadget = listen.removeprefix("ffs:") if listen.startswith("ffs:") else None
    host, port = ("", 0) if gadget is not None else c.parse_address(listen)
    memory_bytes = c.parse_bytes(memory)
    from backburner.worker.throttle import Throttle

    throttle = Throttle(slowdown)
    from backburner.attention.select import make_engine
    from backburner.worker.loopback import READY_PREFIX
    from backburner.worker.loopback import exit_with_parent as watch_parent
    from backburner.worker.server import WorkerServer

    attention = make_engine(engine)
    bake = _bake_settings(attention, bake_tokens, bake_share, bake_dir, bake_size, bake_weights)
    name = name or socket.gethostname()
    if gadget is not None and pair:
        raise ConfigError("--pair is for networks; on a cable there is nobody else.")
    address, loopback = ("", True) if gadget is not None else _may_listen(host, port, pair, pair_cable)
    # Before anyone can call or be paired: finding it may mean a long download, or a mistake.
    layers = None
    if model is not None:
        from backburner.model.load import find_model

        layers = find_model(model)
    if gadget is not None:
        from backburner.transport import functionfs

        door: Door = functionfs.listen(gadget)
        doorkeeper, place = None, "bulk"
    else:
        listener, doorkeeper = _listen(address, port, loopback, name, pair)
        door = listener
        place = f"tcp://{listener.address if doorkeeper is None else f'THIS-MACHINE:{listener.port}'}"
    server = WorkerServer(
        door,
        attention,
        memory_bytes,
        name,
        (attention.name,),
        throttle,
        layers,
        doorkeeper,
        bake,
        _introducer(name) if pair_cable or gadget is not None else None,
    )
    if exit_with_parent:
        watch_parent()
    # Both alike: a KeyboardInterrupt can be lost in a finalizer, and a background job of a shell ignores SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: server.close())
    print(f"{READY_PREFIX}{server.address}", flush=True)
    logging.getLogger("backburner.worker").info(
        "engine %s, %.1f GiB for pages; use it with `backburner serve --device %s`",
        attention.name,
        memory_bytes / 2**30,
        place,
    )
    server.serve_forever()


def _bake_settings(
    engine: "AttentionEngine", tokens: int, share: float | None, folder: str | None, size: str, weights: str
) -> "BakeSettings | None":
    """What the --bake flags say; None for an engine that does not bake. Raises ConfigError."""
    from backburner.attention.baked import BakedEngine

    if not isinstance(engine, BakedEngine):
        return None
    from backburner.coreml.runtime import PageRuntime, SimulatedRuntime
    from backburner.disk import allow_open_files
    from backburner.worker.bake_share import Share, read_share
    from backburner.worker.baker import BakeSettings

    c.check_bake_tokens(tokens)
    if weights not in ("float16", "int8"):
        raise ConfigError(f"--bake-weights {weights!r} is not float16 or int8.")
    path = c.bake_folder(folder)
    runtime: PageRuntime = SimulatedRuntime()
    if engine.name == "baked":
        if path is None:
            raise ConfigError("--engine baked loads pages from files: give --bake-dir a folder.")
        from backburner.coreml.device import DeviceRuntime

        runtime = DeviceRuntime()
    allow_open_files()
    return BakeSettings(
        runtime=runtime,
        share=read_share(path, engine.name, engine.ordinary.name) if share is None else Share(share, share),
        baked_tokens=tokens,
        weights=weights,
        folder=path,
        folder_bytes=c.parse_bytes(size),
    )


def _may_listen(host: str, port: int, pair: bool, pair_cable: bool) -> tuple[str, bool]:
    """The numeric address, and whether it is loopback. Raises ConfigError where nobody could call or be let in."""
    from backburner.transport.tcp import listen_unsecured, resolve

    address, loopback = resolve(host)
    if pair_cable and not loopback:
        raise ConfigError(
            f"--pair-cable is for 127.0.0.1: {host} can be reached by other machines, and they are paired with --pair."
        )
    if loopback and pair:
        raise ConfigError(f"--pair is for networks; {host} is this machine only: use --pair-cable there.")
    if not loopback:  # which needs no key, and makes none
        from backburner.transport.identity import KeyStore

        store = KeyStore(c.pairing_folder())
        if not pair and not store.peers("host"):
            raise ConfigError(
                f"--listen {c.join_address(host, port)} can be reached by other machines, and no host is paired with "
                "this one. Start it once with --pair, and run `backburner pair tcp://THIS-MACHINE:PORT` on the host."
            )
        store.identity()  # a key that cannot be used is better known now
    listen_unsecured(address, port).close()  # and so is a port in use
    return address, loopback


def _listen(
    address: str, port: int, loopback: bool, name: str, pair: bool
) -> "tuple[Listener, Callable[[Channel], Channel] | None]":
    """What a worker listens on, and who looks at the callers' keys; nobody on loopback. Lets one host in before."""
    from backburner.transport.tcp import listen_unsecured

    listener = listen_unsecured(address, port)
    if loopback:
        return listener, None
    from backburner.transport.identity import KeyStore
    from backburner.transport.pairing import WINDOW_S, pair_as_worker
    from backburner.transport.secure import doorkeeper

    store = KeyStore(c.pairing_folder())
    if pair:
        where = c.join_address(socket.gethostname(), listener.port)
        say(f"for {WINDOW_S:g} s a host can be paired: run `backburner pair tcp://{where}` there")
        say_paired(pair_as_worker(listener, store, name, same_words))
    return listener, doorkeeper(store)


def _introducer(name: str) -> "Callable[[PairKeys], Paired]":
    """What trusts a host that hands its key over a cable. This machine's own is made when the first one does."""
    from backburner.transport.cable_pairing import introducer
    from backburner.transport.identity import KeyStore

    store = KeyStore(c.pairing_folder())
    return introducer(store, name, lambda peer: say_introduced(store, peer))
