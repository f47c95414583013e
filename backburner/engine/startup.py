"""Puts a host together: model, attention engine, worker, context. Called on the engine thread."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx

from backburner.attention.engine import AttentionEngine
from backburner.attention.select import make_engine
from backburner.config import check_pages
from backburner.engine.runner import ModelRunner
from backburner.engine.scheduler import UBATCH_TOKENS
from backburner.engine.worker_link import Connect, WorkerLink
from backburner.errors import ConfigError
from backburner.kv.capacity import Capacity, capacity, context_size
from backburner.kv.held import OVERDUE_PAGES
from backburner.kv.residency import Residency
from backburner.model.cpu import available_bytes, missing_c_parts, runs_on_cpu
from backburner.model.load import load

# How to connect, and the address, for a host with this attention engine.
Connector = Callable[[AttentionEngine], tuple[Connect, str]]


class Report(Protocol):
    """Tells a person what start-up is doing."""

    def stage(self, name: str) -> None: ...

    def progress(self, done: int, total: int) -> None: ...

    def done(self, text: str) -> None: ...

    def note(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class HostParts:
    """What a host is made from. `connect` None: no worker."""

    name: str
    folder: Path
    tokenizer: Any  # mlx_lm's TokenizerWrapper
    window_tokens: int
    page_tokens: int
    ctx_size: int | None
    engine: str
    connect: Connector | None = None
    shared_bytes: int = 0  # of this machine's memory that a worker on it will take
    overdue_pages: int = OVERDUE_PAGES


def start_runner(parts: HostParts, report: Report) -> ModelRunner:
    """Loads the model, greets the worker and settles the context. Raises BackburnerError with what to do."""
    try:
        return _start_runner(parts, report)
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
    worker: WorkerLink | None = None
    if parts.connect is not None:
        window_tokens = _window(parts, page_bytes, len(model.attention_layers), host_free, report)
        report.stage("worker")
        connect, address = parts.connect(engine)
        worker = WorkerLink(
            connect,
            address,
            engine,
            geometry,
            model.attention_layers,
            model.fingerprint,
            Residency(parts.page_tokens, window_tokens),
            parts.overdue_pages,
        )
        welcome, speed = worker.welcome, worker.speed
        report.done(
            f"{welcome.name} at {address}, engine {welcome.engine}, {_gib(welcome.memory_bytes)} for pages; "
            f"round trip {speed.rtt_us:.0f} us, {speed.bytes_per_s / 1e6:,.0f} MB/s"
        )
        if welcome.engine != engine.name:
            report.note(
                f"the worker's engine is {welcome.engine}, the host's {engine.name}: "
                "answers agree within rounding, not bit for bit"
            )
    try:
        report.stage("context")
        cap = capacity(
            page_bytes,
            parts.page_tokens,
            len(model.attention_layers),
            host_free,
            worker.welcome.free_bytes if worker else None,
            model.max_position_embeddings,
        )
        ctx_size = context_size(parts.ctx_size, cap)
        if ctx_size < 1:
            raise ConfigError("there is no memory left for K and V; use a smaller model.")
        report.done(_describe(ctx_size, cap, window_tokens, parts.page_tokens, worker is not None))
        runner = ModelRunner(loaded, parts.tokenizer, engine, geometry, ctx_size, worker, cap.host_tokens)
        report.stage("warm-up")
        runner.warm_up()
        report.done("first steps compiled")
        return runner
    except BaseException:
        if worker is not None:
            worker.close()
        raise


def _window(parts: HostParts, page_bytes: int, layers: int, host_free: int, report: Report) -> int:
    """The window, made smaller when the host cannot hold it with a page on its way and a ubatch."""
    host_tokens = capacity(page_bytes, parts.page_tokens, layers, host_free, None, 0).host_tokens
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
