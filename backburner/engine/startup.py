"""Puts a host together: model, attention engine, worker, context. Called on the engine thread."""

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx

from backburner.attention.engine import AttentionEngine, Geometry
from backburner.attention.select import make_engine
from backburner.config import SPLIT_MIN_TOKENS, check_pages
from backburner.engine.engine import Runner
from backburner.engine.runner import ModelRunner, Placement
from backburner.engine.scheduler import UBATCH_TOKENS
from backburner.engine.split_decode import SplitDecodeRunner
from backburner.engine.worker_link import Route, WorkerLink
from backburner.errors import ConfigError, LinkClosed, TransportError
from backburner.kv.capacity import Capacity, capacity, context_size
from backburner.kv.held import OVERDUE_PAGES
from backburner.kv.residency import Residency
from backburner.kv.spill import Spill
from backburner.model.cpu import available_bytes, missing_c_parts, runs_on_cpu
from backburner.model.fingerprint import layers_fingerprint
from backburner.model.load import LoadedModel, Part, load, read_config, text_config

# How to reach a worker, for a host with this attention engine.
Connector = Callable[[AttentionEngine], Route]

# How often the start looks for a worker that nothing announces: a phone's app that is opened.
LOOK_INTERVAL_S = 1.0


class Report(Protocol):
    """Tells a person what start-up is doing."""

    def stage(self, name: str) -> None: ...

    def progress(self, done: int, total: int) -> None: ...

    def done(self, text: str) -> None: ...

    def note(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class HostParts:
    """What a host is made from."""

    name: str
    folder: Path
    tokenizer: Any  # mlx_lm's TokenizerWrapper
    window_tokens: int
    page_tokens: int
    ctx_size: int | None
    engine: str
    connect: Sequence[Connector] = ()  # one for each worker
    shared_bytes: int = 0  # of this machine's memory that workers on it will take
    overdue_pages: int = OVERDUE_PAGES
    split_tokens_min: int = SPLIT_MIN_TOKENS  # shorter reads stay on the host
    split_decode: int = 0  # layers of a host that cannot hold more; a worker runs the others for every token
    split_layer: int | None = None  # None: chosen from measured speeds; 0: reads are not split
    spill_folder: Path | None = None  # None: no spill
    spill_bytes: int = 0


def start_runner(parts: HostParts, report: Report) -> Runner[Any]:
    """Loads the model, greets the worker and settles the context. Raises BackburnerError with what to do."""
    try:
        return _start_split_decode(parts, report) if parts.split_decode else _start_runner(parts, report)
    except BaseException:
        # No runner will do it on its way out, and a start that failed must end with its message, not with an abort.
        mx.clear_streams()
        raise


def _start_runner(parts: HostParts, report: Report) -> ModelRunner:
    check_pages(parts.window_tokens, parts.page_tokens)
    engine = make_engine(parts.engine)
    report.stage(f"model {parts.name}")
    loaded = load(parts.name, parts.folder, report.progress)
    model = loaded.model
    geometry = model.geometry(parts.page_tokens)
    page_bytes = engine.page_bytes(geometry)
    report.done(
        f"{len(model.layers)} layers, {len(model.attention_layers)} with K/V; {geometry.dtype}, "
        f"attention engine {engine.name}"
    )
    for note in loaded.notes:
        report.note(note)
    if runs_on_cpu() and (missing := missing_c_parts(parts.engine)):
        report.note(f"running slower than it could: {missing}. With a C compiler, reinstall backburner.")

    host_free = max(0, available_bytes() - parts.shared_bytes)
    window_tokens = parts.window_tokens
    if parts.connect:
        window_tokens = _window(parts, page_bytes, len(model.attention_layers), host_free, report)
    with contextlib.ExitStack() as undo:
        workers = [_worker(c, engine, geometry, loaded, report, undo) for c in parts.connect]
        report.stage("context")
        cap = capacity(
            page_bytes,
            parts.page_tokens,
            len(model.attention_layers),
            host_free,
            [worker.welcome.free_bytes for worker in workers],
            model.max_position_embeddings,
        )
        ctx_size = context_size(parts.ctx_size, cap)
        if ctx_size < 1:
            raise ConfigError("there is no memory left for K and V; use a smaller model.")
        report.done(_describe(ctx_size, cap, window_tokens, parts.page_tokens, bool(workers)))
        spill = _spill(parts, engine, geometry, model.attention_layers, cap, ctx_size - window_tokens, report)
        if spill is not None:
            undo.callback(spill.close)
        config = read_config(parts.folder)
        placement = Placement(
            workers=workers,
            residency=Residency(parts.page_tokens, window_tokens),
            spill=spill,
            overdue_pages=parts.overdue_pages,
            split_layer=parts.split_layer,
            split_tokens_min=parts.split_tokens_min,
            fingerprint=functools.cache(
                lambda first, stop: layers_fingerprint(parts.folder, config, first, stop, False)
            ),
            cycle=int(model.config.get("full_attention_interval", 4)),
            host_tokens=cap.host_tokens,
        )
        runner = ModelRunner(loaded, parts.tokenizer, engine, geometry, ctx_size, placement)
        report.stage("warm-up")
        runner.warm_up()
        report.done("first steps taken")
        if runner.split_note is not None and any(worker.welcome.layers for worker in workers):
            report.note(runner.split_note)
        undo.pop_all()
        return runner


def _start_split_decode(parts: HostParts, report: Report) -> SplitDecodeRunner:
    (connector,) = parts.connect
    seam, config = parts.split_decode, read_config(parts.folder)
    layers = int(text_config(config)["num_hidden_layers"])
    if seam >= layers:
        raise ConfigError(f"--split-decode {seam}: the model has {layers} layers; give fewer.")
    engine = make_engine(parts.engine)
    report.stage(f"model {parts.name}")
    loaded = load(parts.name, parts.folder, report.progress, Part(0, seam, False))
    model = loaded.model
    geometry = model.geometry(parts.page_tokens)
    here = sum(i < seam for i in model.attention_layers)
    there = len(model.attention_layers) - here
    if not here:
        raise ConfigError(
            f"--split-decode {seam}: the first layer with K and V is {model.attention_layers[0]}; give more."
        )
    report.done(f"layers [0, {seam}) of {layers} here; {geometry.dtype}, attention engine {engine.name}")
    with contextlib.ExitStack() as undo:
        worker = _worker(connector, engine, geometry, loaded, report, undo)
        if worker.welcome.layers != layers:
            raise ConfigError(
                "--split-decode: the worker has not this model; start it with the same --model."
            )
        report.stage("context")
        page_bytes = engine.page_bytes(geometry)
        host_free = max(0, available_bytes() - parts.shared_bytes)
        cap = capacity(page_bytes, parts.page_tokens, here, host_free, (), model.max_position_embeddings)
        fits_there = worker.welcome.free_bytes // (page_bytes * max(1, there)) * parts.page_tokens
        most = min(cap.host_tokens, fits_there, cap.model_tokens)
        if (parts.ctx_size or 1) > most or most < 1:
            asked = "no room for a conversation" if parts.ctx_size is None else f"--ctx-size {parts.ctx_size}"
            raise ConfigError(
                f"{asked}: the host can hold {cap.host_tokens} tokens of its layers' K and V, the "
                f"worker {fits_there}, the model {cap.model_tokens}."
            )
        ctx_size = parts.ctx_size or most
        report.done(f"{ctx_size:,} tokens; host can hold {cap.host_tokens:,}, worker {fits_there:,}")
        runner = SplitDecodeRunner(
            loaded,
            parts.tokenizer,
            engine,
            geometry,
            ctx_size,
            worker,
            layers,
            lambda first, stop: layers_fingerprint(parts.folder, config, first, stop, True),
            host_tokens=cap.host_tokens,
        )
        report.stage("warm-up")
        runner.warm_up()
        report.done("first steps taken")
        undo.pop_all()
        return runner


def _worker(
    connector: Connector,
    engine: AttentionEngine,
    geometry: Geometry,
    loaded: LoadedModel,
    report: Report,
    undo: contextlib.ExitStack,
) -> WorkerLink:
    report.stage("worker")
    route, model = connector(engine), loaded.model
    worker = _awaited(
        route,
        lambda: WorkerLink(
            route.connect,
            route.address,
            engine,
            geometry,
            model.attention_layers,
            model.fingerprint,
            route.watch,
        ),
        report,
    )
    undo.callback(worker.close)
    welcome, speed = worker.welcome, worker.speed
    report.done(
        f"{welcome.name} at {route.address}, engine {welcome.engine}, {_gib(welcome.memory_bytes)} for pages; "
        f"round trip {speed.rtt_us:.0f} us, {speed.bytes_per_s / 1e6:,.0f} MB/s"
    )
    if welcome.layers == 0:
        report.note(
            "the worker has no model, so it holds pages but does not help with reading (worker --model ...)"
        )
    if welcome.engine != engine.name:
        report.note(
            f"the worker's engine is {welcome.engine}, the host's {engine.name}: "
            "answers agree within rounding, not bit for bit"
        )
    return worker


def _awaited(route: Route, reach: Callable[[], WorkerLink], report: Report) -> WorkerLink:
    """The worker, once it is there. Raises why it is not when the time to wait is over."""
    deadline = time.monotonic() + route.wait_s
    arrived, said = threading.Event(), ""
    with contextlib.ExitStack() as watching:
        if route.watch is not None and route.wait_s:
            watching.callback(route.watch(arrived.set))
        while True:
            arrived.clear()
            try:
                return reach()
            except TransportError as e:
                left = deadline - time.monotonic()
                if not route.wait_s:
                    raise
                if left <= 0:
                    raise LinkClosed(
                        f"waited {route.wait_s:g} s for {route.address}: {e} (--device-wait waits longer)"
                    ) from None
                if str(e) != said:
                    said = str(e)
                    report.note(f"waiting for {route.address}, {left:.0f} s more: {e}")
            arrived.wait(min(left, LOOK_INTERVAL_S))


def _spill(
    parts: HostParts,
    engine: AttentionEngine,
    geometry: Geometry,
    layers: Sequence[int],
    cap: Capacity,
    old_tokens: int,
    report: Report,
) -> Spill | None:
    if not parts.connect:
        return None
    if parts.spill_folder is None:
        report.note(
            "no spill: when the worker is lost, a conversation whose old pages it holds ends with an error"
        )
        return None
    spill = Spill(parts.spill_folder, parts.spill_bytes, engine, geometry, layers)
    wanted = max(0, old_tokens) * cap.token_bytes
    if wanted > parts.spill_bytes:
        report.note(
            f"--spill-size {_gib(parts.spill_bytes)} is less than the {_gib(wanted)} of a full context's old pages: "
            "what does not fit is lost with the worker"
        )
    return spill


def _window(parts: HostParts, page_bytes: int, layers: int, host_free: int, report: Report) -> int:
    """The window, made smaller when the host cannot hold it with a page on its way and a ubatch."""
    host_tokens = capacity(page_bytes, parts.page_tokens, layers, host_free, (), 0).host_tokens
    room = host_tokens - 2 * parts.page_tokens - UBATCH_TOKENS
    if room >= parts.window_tokens:
        return parts.window_tokens
    if room < parts.page_tokens:
        raise ConfigError(
            f"this host has memory for {host_tokens} tokens of K and V, too little for --page-tokens "
            f"{parts.page_tokens}; give smaller pages or use a smaller model."
        )
    report.note(f"the window is {room:,} tokens: this host has no memory for {parts.window_tokens:,}")
    return room


def _describe(ctx_size: int, cap: Capacity, window_tokens: int, page_tokens: int, with_worker: bool) -> str:
    text = f"{ctx_size:,} tokens ({cap.token_bytes:,} bytes of K/V each"
    if not with_worker:
        return f"{text}; this host can hold {cap.host_tokens:,})"
    return (
        f"{text}; host can hold {cap.host_tokens:,}, worker {cap.worker_tokens:,}); the newest "
        f"{window_tokens:,} stay here, older pages of {page_tokens:,} go to the worker"
    )


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
