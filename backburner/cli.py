"""The commands: `backburner serve` and `backburner worker`."""

import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backburner import __version__
from backburner import config as c
from backburner.cli_bake import app as bake_app
from backburner.cli_bench import app as bench_app
from backburner.cli_devices import add_commands
from backburner.errors import BackburnerError, ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from backburner.attention.engine import AttentionEngine
    from backburner.engine.startup import Connector
    from backburner.transport.channel import Channel, Door
    from backburner.transport.identity import KeyStore, TrustedPeer
    from backburner.transport.link import Link
    from backburner.transport.messages import Paired, PairKeys
    from backburner.transport.tcp import Listener
    from backburner.worker.baker import BakeSettings
    from backburner.worker.loopback import LoopbackWorker

app = typer.Typer(
    help="An OpenAI-compatible server for Qwen hybrid models that uses a second device on a cable as a coprocessor.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"auto_envvar_prefix": "BACKBURNER", "help_option_names": ["-h", "--help"]},
)

app.add_typer(bake_app, name="bake")
app.add_typer(bench_app, name="bench")

# At the end, how long the engine may take for the step that it is in before a loopback worker is stopped under it.
STEP_GRACE_S = 3.0


def _names(own: str, *others: str) -> list[str]:
    """The environment's names for a flag of `serve`: ours first, then llama-server's for the same."""
    return [f"BACKBURNER_SERVE_{own}", *others]


LogLevel = Annotated[str, typer.Option(help="debug, info, warning or error.")]


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


@app.command()
def serve(
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            envvar=_names("MODEL", "LLAMA_ARG_MODEL"),
            help="A model folder or a Hugging Face id (OWNER/NAME). Default: the embedded `tiny`.",
        ),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(
            help="A worker: none, loopback, usb (the phone on a cable), usb:SERIAL, bulk (a Linux gadget) or "
            "tcp://HOST:PORT; may be repeated. Default: none. "
            "?bandwidth=480Mbps&rtt=2ms after it makes the link that slow, for trying out."
        ),
    ] = None,
    device_wait: Annotated[
        float,
        typer.Option(
            help="How many seconds the start waits for a phone (--device usb) that is not there yet; 0: not at all."
        ),
    ] = c.DEVICE_WAIT_S,
    host: Annotated[
        str,
        typer.Option(
            envvar=_names("HOST", "LLAMA_ARG_HOST"),
            help="The address to serve on. Beyond this machine only with an API key.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            envvar=_names("PORT", "LLAMA_ARG_PORT"), help="The port to serve on; 0 takes a free one."
        ),
    ] = c.SERVER_PORT,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar=_names("API_KEY", "LLAMA_API_KEY"),
            help="A key that requests have to show; may be repeated, or several with commas. Other users of this "
            "machine see the flag, not the variable and not the file.",
        ),
    ] = None,
    api_key_file: Annotated[
        str | None,
        typer.Option(
            envvar=_names("API_KEY_FILE", "LLAMA_ARG_API_KEY_FILE"),
            help="A file with such keys, one a line; # begins a comment.",
        ),
    ] = None,
    cors_origins: Annotated[
        list[str] | None,
        typer.Option(
            help="Origins whose web pages may use /v1/*, e.g. http://localhost:3000; several with commas, * for any. "
            "Default: none."
        ),
    ] = None,
    max_queue: Annotated[
        int, typer.Option(help="Requests that may wait; more are refused with 429.")
    ] = c.MAX_QUEUE,
    max_body: Annotated[str, typer.Option(help="The largest request body.")] = c.MAX_BODY,
    window_tokens: Annotated[
        int | None,
        typer.Option(
            help=f"The newest positions that stay here. Default: {c.WINDOW_TOKENS:,}; tiny: {c.TINY_WINDOW_TOKENS}."
        ),
    ] = None,
    page_tokens: Annotated[
        int | None,
        typer.Option(help=f"Positions in a page. Default: {c.PAGE_TOKENS:,}; tiny: {c.TINY_PAGE_TOKENS}."),
    ] = None,
    ctx_size: Annotated[
        int | None,
        typer.Option(
            "--ctx-size",
            "-c",
            envvar=_names("CTX_SIZE", "LLAMA_ARG_CTX_SIZE"),
            help="The longest context. Default: what host and worker can hold.",
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="Attention engine: auto, native, numpy or mlx.")] = "auto",
    worker_memory: Annotated[str, typer.Option(help="The memory of a loopback worker's pages.")] = "2GiB",
    split_layer: Annotated[
        str,
        typer.Option(
            help="Where a long read is split: the worker runs the layers from here on. auto (from measured speeds), 0 "
            "(never), or a number of layers."
        ),
    ] = "auto",
    split_min_tokens: Annotated[
        int, typer.Option(help="Reads of at most so many tokens are not split.")
    ] = c.SPLIT_MIN_TOKENS,
    split_decode: Annotated[
        int,
        typer.Option(
            help="For a host that cannot hold the model: it loads this many layers, and the worker (with --model) runs "
            "the others for every token."
        ),
    ] = 0,
    spill_dir: Annotated[
        str | None,
        typer.Option(
            help="Where copies of the pages go that leave this host, so that losing a worker loses nothing. "
            "Default: the user's cache folder; none: no copies, and a lost worker ends the conversations it holds."
        ),
    ] = None,
    spill_size: Annotated[str, typer.Option(help="The most disk space for these copies.")] = c.SPILL_SIZE,
    served_model_name: Annotated[
        str | None,
        typer.Option(
            "--served-model-name",
            "--alias",
            "-a",
            envvar=_names("SERVED_MODEL_NAME", "LLAMA_ARG_ALIAS"),
            help="The model's name in the API; further ones after commas.",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="The longest answer when a request does not say.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature", "--temp", help="When a request does not say. Default: the model's own; else 0."
        ),
    ] = None,
    chat_template_kwargs: Annotated[
        str | None, typer.Option(help="JSON for the chat template, e.g. '{\"enable_thinking\": true}'.")
    ] = None,
    log_level: LogLevel = "info",
) -> None:
    """Serves the OpenAI API on this machine."""
    from backburner.terminal import StartReport, configure_logging, end_at_once_on_signals

    configure_logging(log_level)
    end_at_once_on_signals()
    devices = [c.parse_device(text) for text in device or ["none"]]
    template_kwargs = _json_object(chat_template_kwargs)
    _check_limits(ctx_size, max_tokens, temperature)
    access = _access(api_key, api_key_file, cors_origins)
    if max_queue < 0:
        raise ConfigError(f"--max-queue {max_queue} must be 0 or more.")
    max_body_bytes = c.parse_bytes(max_body)
    if max_body_bytes < 1:
        raise ConfigError(f"--max-body {max_body} admits no request; give for example {c.MAX_BODY}.")
    names = [name.strip() for name in (served_model_name or "").split(",") if name.strip()]
    seam = c.parse_split_layer(split_layer)
    if split_decode < 0:
        raise ConfigError(f"--split-decode {split_decode} must be 0 (off) or a number of layers.")
    # Zero is a mistake to be told about, not a wish for the default.
    embedded = model is None
    if window_tokens is None:
        window_tokens = c.TINY_WINDOW_TOKENS if embedded else c.WINDOW_TOKENS
    if page_tokens is None:
        page_tokens = c.TINY_PAGE_TOKENS if embedded else c.PAGE_TOKENS
    c.check_pages(window_tokens, page_tokens)
    # All that can be wrong with the flags is found before a model is looked for, which may mean a long download.
    _check_engine(engine)
    # A loopback worker runs layers, too, where that costs little or was asked for: it has the weights a second time.
    worker_model = (model or "tiny") if model is None or seam or split_decode else None
    if not 0 <= device_wait <= 86_400:
        raise ConfigError(f"--device-wait {device_wait:g} must be from 0 to 86,400 seconds.")
    workers = _workers(devices, worker_memory, log_level, worker_model, device_wait)
    loopbacks = [one.loopback for one in workers if one.loopback is not None]
    from backburner.api.server import bind, require_keys_beyond_loopback, url_of

    sock = bind(host, port)
    require_keys_beyond_loopback(sock, bool(access.keys))
    from backburner.api.app import create_app
    from backburner.api.server import serve as run_server
    from backburner.api.settings import ApiSettings
    from backburner.engine.engine import Engine
    from backburner.engine.request import SamplingParams
    from backburner.engine.startup import HostParts, start_runner
    from backburner.model.load import (
        find_model,
        model_type_for,
        read_config,
        read_tokenizer,
        sampling_defaults,
    )

    report = StartReport()
    name, folder = find_model(model)
    model_type_for(read_config(folder))
    tokenizer = read_tokenizer(folder)
    parts = HostParts(
        name=name,
        folder=folder,
        tokenizer=tokenizer,
        window_tokens=window_tokens,
        page_tokens=page_tokens,
        shared_bytes=c.parse_bytes(worker_memory) * len(loopbacks),
        ctx_size=ctx_size,
        engine=engine,
        connect=tuple(one.connect for one in workers),
        split_layer=seam,
        split_tokens_min=split_min_tokens,
        split_decode=split_decode,
        spill_folder=c.spill_folder(spill_dir),
        spill_bytes=c.parse_bytes(spill_size),
    )
    engine_thread = Engine(lambda: start_runner(parts, report), name, max_queue)
    with contextlib.ExitStack() as cleanup:
        # These run from the last to the first. A step that waits for a frozen worker ends when the worker is killed.
        cleanup.callback(engine_thread.close)
        for loopback in loopbacks:
            cleanup.callback(loopback.close)
        cleanup.enter_context(report)
        engine_thread.start()
        cleanup.callback(engine_thread.close, STEP_GRACE_S)
        defaults = sampling_defaults(folder)
        if temperature is not None:
            defaults["temperature"] = temperature
        served = names[0] if names else name
        settings = ApiSettings(
            model_id=served,
            ctx_size=engine_thread.status().ctx_size,
            aliases=tuple({name, str(model or name), *names} - {served}),
            sampling=SamplingParams(
                temperature=float(defaults.get("temperature", 0.0)),
                top_p=float(defaults.get("top_p", 1.0)),
                top_k=int(defaults.get("top_k", 0)),
                min_p=float(defaults.get("min_p", 0.0)),
            ),
            max_tokens=max_tokens,
            # The embedded model answers best without thinking; others do as their template says.
            chat_template_kwargs={"enable_thinking": not embedded} | template_kwargs,
            bound_host=host,
            api_keys=access.keys,
            cors_origins=access.origins,
            max_body_bytes=max_body_bytes,
        )
        api = create_app(engine_thread, tokenizer, settings)
        run_server(
            api, sock, on_ready=lambda: report.ready(url_of(sock), served, embedded), log_level=log_level
        )
        report.note("stopped")


def _check_limits(ctx_size: int | None, max_tokens: int | None, temperature: float | None) -> None:
    for flag, value in (("--ctx-size", ctx_size), ("--max-tokens", max_tokens)):
        if value is not None and value < 1:
            raise ConfigError(f"{flag} {value} must be at least 1.")
    # The range that the API allows a request.
    if temperature is not None and not 0 <= temperature <= 2:
        raise ConfigError(f"--temperature {temperature:g} must be from 0 to 2.")


@dataclass(frozen=True, slots=True)
class _Access:
    keys: tuple[str, ...]
    origins: tuple[str, ...]


def _access(keys: Sequence[str] | None, key_file: str | None, origins: Sequence[str] | None) -> _Access:
    """Who may use the endpoint. Raises ConfigError."""
    from pathlib import Path

    from backburner.api.access import read_key_file, split_keys
    from backburner.api.guard import ANY_ORIGIN, parse_origins

    found = split_keys(keys or (), "--api-key")
    if key_file is not None:
        found += read_key_file(Path(key_file).expanduser())
    allowed = parse_origins(origins or ())
    if ANY_ORIGIN in allowed and not found:
        logging.getLogger("backburner").warning(
            "--cors-origins * without an API key: every web page that this machine's users visit may use the model"
        )
    return _Access(tuple(dict.fromkeys(found)), allowed)


def _check_engine(name: str) -> None:
    from backburner.attention.select import ENGINE_NAMES

    if name not in ENGINE_NAMES:
        raise ConfigError(f"--engine {name!r} is not one of {', '.join(ENGINE_NAMES)}.")


def _json_object(text: str | None) -> dict[str, Any]:
    import json

    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError as e:
        raise ConfigError(f"--chat-template-kwargs is not JSON: {e}") from None
    if not isinstance(value, dict):
        raise ConfigError("--chat-template-kwargs must be a JSON object.")
    return value


@dataclass(frozen=True, slots=True)
class _Worker:
    """A worker that was asked for, how to reach it, and its process if that is ours to start."""

    device: c.Device
    connect: "Connector"
    loopback: "LoopbackWorker | None"


def _workers(
    devices: Sequence[c.Device], memory: str, log_level: str, model: str | None, wait_s: float
) -> list[_Worker]:
    """One for each --device, in their order; none for `none`. model: for those on this machine to run layers of."""
    if any(device.kind == "none" for device in devices):
        if len(devices) > 1:
            raise ConfigError("--device none means no worker at all; leave it out, or leave out the others.")
        return []
    workers = []
    addresses = set()
    for device in devices:
        if device.kind == "loopback":
            workers.append(_loopback_worker(device, memory, log_level, model))
            continue
        if device.kind == "usb":
            same = ("", device.serial.replace("-", "").upper())
            if sum(o.kind == "usb" and o.serial.replace("-", "").upper() in same for o in devices) > 1:
                raise ConfigError("--device usb is given twice; name each phone: usb:SERIAL, and only once.")
            workers.append(_usb_worker(device, wait_s))
            continue
        if device.kind == "bulk":
            if sum(o.kind == "bulk" and o.serial in ("", device.serial) for o in devices) > 1:
                raise ConfigError(
                    "--device bulk is given twice; name each gadget: bulk:SERIAL, and only once."
                )
            workers.append(_bulk_worker(device))
            continue
        from backburner.transport.tcp import resolve

        numeric, loopback = resolve(device.host)
        address = (numeric, device.port)
        if address in addresses:
            raise ConfigError(
                f"--device tcp://{c.join_address(device.host, device.port)} is given twice; a worker serves one link."
            )
        addresses.add(address)
        workers.append(_tcp_worker(device, loopback))
    return workers


def _loopback_worker(device: c.Device, memory: str, log_level: str, model: str | None) -> _Worker:
    from backburner.worker.loopback import LoopbackWorker

    loopback = LoopbackWorker(c.parse_bytes(memory), log_level, wrap=_shaper(device.shape), model=model)
    from backburner.engine.worker_link import Route

    return _Worker(device, lambda engine: Route(loopback.connector(engine.name), str(device)), loopback)


def _usb_worker(device: c.Device, wait_s: float) -> _Worker:
    from backburner.engine.worker_link import Route
    from backburner.errors import TransportError
    from backburner.transport.link import Link
    from backburner.transport.usbmux import Phone

    phone, shaped = Phone(device.serial or None, c.WORKER_PORT), _shaper(device.shape)
    # Two phones, say, are found before the model is loaded; one that is away may come while that goes on.
    try:
        phone.find()
    except TransportError:
        if not wait_s:
            raise
    route = Route(lambda: Link(shaped(phone.connect())), str(device), phone.watch, wait_s)
    return _Worker(device, lambda engine: route, None)


def _bulk_worker(device: c.Device) -> _Worker:
    from backburner.engine.worker_link import Route
    from backburner.transport.bulk import connect
    from backburner.transport.link import Link

    shaped = _shaper(device.shape)
    return _Worker(
        device, lambda engine: Route(lambda: Link(shaped(connect(device.serial or None))), str(device)), None
    )


@contextlib.contextmanager
def _reach(device: c.Device) -> "Iterator[Callable[[], Link]]":
    """How to connect to one worker, for the commands that look at it; one of our own ends with the look."""
    from backburner.attention.select import make_engine

    (one,) = _workers([device], "256MiB", "warning", None, 0.0)
    try:
        yield one.connect(make_engine("numpy")).connect
    finally:
        if one.loopback is not None:
            one.loopback.close()


add_commands(app, _reach)


def _tcp_worker(device: c.Device, loopback: bool) -> _Worker:
    from backburner.engine.worker_link import Route
    from backburner.transport.link import Link
    from backburner.transport.tcp import connect

    shaped = _shaper(device.shape)
    reach: Callable[[], Channel]
    if loopback:

        def reach() -> "Channel":
            return connect(device.host, device.port)
    else:
        reach = _paired_worker(device)
    return _Worker(device, lambda engine: Route(lambda: Link(shaped(reach())), str(device)), None)


def _paired_worker(device: c.Device) -> "Callable[[], Channel]":
    """Over TLS, to a worker whose key is known. Raises ConfigError if none is."""
    from backburner.transport.identity import KeyStore
    from backburner.transport.secure import connector

    where = c.join_address(device.host, device.port)
    store = KeyStore(c.pairing_folder())
    if not store.peers("worker"):
        raise ConfigError(
            f"{where} is another machine, and this one is paired with no worker. Start `backburner worker --listen "
            f"0.0.0.0:{device.port} --pair` there and run `backburner pair tcp://{where}` here."
        )
    return connector(device.host, device.port, where, store)


def _shaper(shape: c.LinkShape | None) -> "Callable[[Channel], Channel]":
    """What makes a channel as slow as the device says."""
    if shape is None:
        return lambda channel: channel
    from backburner.transport.shaped import ShapedChannel

    return lambda channel: ShapedChannel(channel, shape.bandwidth_bytes_per_s, shape.rtt_s)


@app.command()
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
    log_level: LogLevel = "info",
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
    if gadget is not None:
        from backburner.transport import functionfs

        if pair:
            raise ConfigError("--pair is for networks; on a cable there is nobody else.")
        door: Door = functionfs.listen(gadget)
        doorkeeper, place = None, "bulk"
    else:
        listener, doorkeeper = _listen(host, port, name, pair, pair_cable)
        door = listener
        place = f"tcp://{listener.address if doorkeeper is None else f'THIS-MACHINE:{listener.port}'}"
    server = WorkerServer(
        door,
        attention,
        memory_bytes,
        name,
        (attention.name,),
        throttle,
        None if model is None else _worker_model(model),
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
    from backburner.worker.bake_share import Share, read_share
    from backburner.worker.baker import BakeSettings

    if not 16 <= tokens <= c.BAKE_TOKENS:
        raise ConfigError(f"--bake-tokens {tokens} must be from 16 to {c.BAKE_TOKENS:,}.")
    if weights not in ("float16", "int8"):
        raise ConfigError(f"--bake-weights {weights!r} is not float16 or int8.")
    path = c.bake_folder(folder)
    runtime: PageRuntime = SimulatedRuntime()
    if engine.name == "baked":
        from backburner.coreml.device import DeviceRuntime

        runtime = DeviceRuntime()
    return BakeSettings(
        runtime=runtime,
        share=read_share(path, engine.name, engine.ordinary.name) if share is None else Share(share, share),
        baked_tokens=tokens,
        weights=weights,
        folder=path,
        folder_bytes=c.parse_bytes(size),
    )


def _listen(
    host: str, port: int, name: str, pair: bool, pair_cable: bool
) -> "tuple[Listener, Callable[[Channel], Channel] | None]":
    """What a worker listens on, and who looks at the callers' keys; nobody on loopback. Lets one host in before."""
    from backburner.transport.tcp import listen_unsecured, resolve

    address, loopback = resolve(host)
    if pair_cable and not loopback:
        raise ConfigError(
            f"--pair-cable is for 127.0.0.1: {host} can be reached by other machines, and they are paired with --pair."
        )
    if loopback and pair:
        raise ConfigError(f"--pair is for networks; {host} is this machine only: use --pair-cable there.")
    if loopback:  # it needs no key, and makes none
        return listen_unsecured(address, port), None
    from backburner.transport.identity import KeyStore
    from backburner.transport.pairing import WINDOW_S, pair_as_worker
    from backburner.transport.secure import doorkeeper

    store = KeyStore(c.pairing_folder())
    if not pair and not store.peers("host"):
        raise ConfigError(
            f"--listen {c.join_address(host, port)} can be reached by other machines, and no host is paired with this "
            "one. Start it once with --pair, and run `backburner pair tcp://THIS-MACHINE:PORT` on the host."
        )
    store.identity()  # a key that cannot be used is better known now
    listener = listen_unsecured(address, port)
    if pair:
        where = c.join_address(socket.gethostname(), listener.port)
        _say(f"for {WINDOW_S:g} s a host can be paired: run `backburner pair tcp://{where}` there")
        _say_paired(pair_as_worker(listener, store, name, _same_words))
    return listener, doorkeeper(store)


def _introducer(name: str) -> "Callable[[PairKeys], Paired]":
    """What trusts a host that hands its key over a cable. This machine's own is made when the first one does."""
    from backburner.transport.cable_pairing import introducer
    from backburner.transport.identity import KeyStore

    store = KeyStore(c.pairing_folder())
    return introducer(store, name, lambda peer: _say_introduced(store, peer))


@app.command()
def pair(
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="[tcp://HOST:PORT|usb[:SERIAL]|bulk[:SERIAL]]",
            help="The worker: on a network started with --pair; on a cable or 127.0.0.1 no words are compared.",
        ),
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="Show who is paired with this machine.")] = False,
    forget: Annotated[
        str | None, typer.Option(metavar="NAME", help="Let the machine of that name in no more.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="How this host is called. Default: the host name.")] = None,
) -> None:
    """Lets this host and a worker know each other on every network from now on.

    Over a network a person compares six words on both screens.

    Over a cable, or on 127.0.0.1 with `worker --pair-cable`, keys are exchanged without words.
    """
    from backburner.transport.cable_pairing import introduce_host
    from backburner.transport.identity import KeyStore
    from backburner.transport.pairing import pair_as_host
    from backburner.transport.tcp import connect_unsecured, resolve

    if (place is not None) + listing + (forget is not None) != 1:
        raise ConfigError("backburner pair takes one of a worker's place, --list and --forget NAME.")
    store = KeyStore(c.pairing_folder())
    if listing:
        print(f"this machine  {store.identity().fingerprint.hex()}")
        for peer in store.peers():
            print(f"{peer.role:<6}  {peer.since}  {peer.fingerprint}  {peer.name}")
        return
    if forget is not None:
        gone = store.forget(forget)
        if not gone:
            raise ConfigError(f"{forget!r} is not paired with this machine; see `backburner pair --list`.")
        _say(f"forgot {forget}; a connection that is open stays so until it ends")
        return
    device = c.parse_device(place or "")
    if device.kind not in ("tcp", "usb", "bulk") or device.shape is not None:
        raise ConfigError(f"{place!r} is not tcp://HOST:PORT, usb[:SERIAL] or bulk[:SERIAL].")
    name = name or socket.gethostname()
    address, alone = resolve(device.host) if device.kind == "tcp" else ("", True)
    if alone:
        with _reach(device) as connect:
            _say_introduced(store, introduce_host(connect(), store, name))
        _say(
            f"on a network, too: `backburner worker --listen 0.0.0.0:{c.WORKER_PORT}` there, "
            f"`backburner serve --device tcp://THAT-MACHINE:{c.WORKER_PORT}` here"
        )
        return
    channel = connect_unsecured(address, device.port, c.join_address(device.host, device.port))
    _say_paired(pair_as_host(channel, store, name, _same_words))
    _say(f"use it with `backburner serve --device {device}`")


def _same_words(name: str, address: str, words: Sequence[str]) -> bool:
    """Asks the person at this machine."""
    _say(f"{name} at {address}. The other screen has to show these six words, in this order:")
    _say(f"\n    {' '.join(words)}\n")
    print("Does it? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _say_paired(peer: "TrustedPeer") -> None:
    _say(f"paired with the {peer.role} {peer.name}, key {peer.fingerprint[:16]}")


def _say_introduced(store: "KeyStore", peer: "TrustedPeer") -> None:
    """After an exchange without words: both keys, for whoever wants to compare them on the two screens."""
    _say_paired(peer)
    _say(f"this machine's key is {store.identity().fingerprint.hex()[:16]}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _worker_model(model: str) -> "tuple[str, Path]":
    """The name and folder of a worker's --model."""
    from backburner.model.load import find_model

    return find_model(None if model == "tiny" else model)
