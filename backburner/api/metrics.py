"""GET /metrics: what the endpoint counts itself, and the engine's snapshot in Prometheus' words."""

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from typing import Any

from fastapi import Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from backburner.engine.request import EngineClient, EngineStatus, WorkerStatus

# From a warm short prompt to a cold read of 262k tokens at 300 tokens/s.
TTFT_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200)

# For paths that nobody serves: a label for each would let strangers fill our memory.
UNKNOWN_ENDPOINT = "other"


class Metrics:
    """Of one app: nothing is shared between two of them in a process."""

    def __init__(self, engine: EngineClient) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "backburner_http_requests",
            "Requests by endpoint and the status that their answer began with.",
            ("endpoint", "status"),
            registry=self.registry,
        )
        self.ttft = Histogram(
            "backburner_time_to_first_token_seconds",
            "From submission to the engine to the first token, with the wait in the queue.",
            buckets=TTFT_BUCKETS_S,
            registry=self.registry,
        )
        self.registry.register(_EngineCollector(engine))

    def response(self) -> Response:
        return Response(generate_latest(self.registry), headers={"content-type": CONTENT_TYPE_LATEST})


class CountRequests:
    """ASGI middleware, the outermost, so that refusals count too."""

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: Sequence[BaseRoute]) -> None:
        """routes: all that the app has by its first request."""
        self.app = app
        self._metrics = metrics
        self._paths = frozenset(route.path for route in routes if isinstance(route, Route))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def counting(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests.labels(self._endpoint(scope), str(message["status"])).inc()
            await send(message)

        await self.app(scope, receive, counting)

    def _endpoint(self, scope: Scope) -> str:
        # Routing has left the route's own path, with its parameters' names; before it, the request's path has to do.
        path = getattr(scope.get("route"), "path", scope["path"])
        return path if path in self._paths else UNKNOWN_ENDPOINT


class _EngineCollector(Collector):
    """Reads one snapshot at each scrape; nothing is kept between two."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine

    def describe(self) -> Iterable[Metric]:
        return ()  # or registering would ask an engine that may not have started

    def collect(self) -> Iterator[Metric]:
        status = self._engine.status()
        yield from _engine_metrics(status)
        yield from _runner_metrics(status)
        yield from _worker_metrics(status.workers)


def _engine_metrics(status: EngineStatus) -> Iterator[Metric]:
    totals = status.totals
    yield _gauge("up", "Whether the engine can generate.", status.alive)
    yield _counter("engine_restarts", "How often the engine has failed and was begun again.", status.restarts)
    yield _gauge("context_tokens", "The longest context a request can use.", status.ctx_size)
    yield _gauge("requests_running", "Requests that are being answered.", status.running)
    yield _gauge("requests_waiting", "Requests in the queue.", status.waiting)
    if status.max_queue is not None:
        yield _gauge("queue_limit", "Requests that may wait; more are refused with 429.", status.max_queue)
    generations = CounterMetricFamily(
        "backburner_generations", "Answers by how they ended; each choice is one.", labels=("outcome",)
    )
    for outcome, count in (
        ("finished", totals.finished),
        ("failed", totals.failed),
        ("cancelled", totals.cancelled),
    ):
        generations.add_metric((outcome,), count)
    yield generations
    yield _counter(
        "prompt_tokens", "Prompt tokens, cached ones too.", totals.read_tokens + totals.cached_tokens
    )
    yield _counter("cached_tokens", "Prompt tokens that needed no reading.", totals.cached_tokens)
    yield _counter("generated_tokens", "Tokens of answers.", totals.generated_tokens)
    stages = CounterMetricFamily(
        "backburner_stage_seconds", "Time that requests have spent in a stage.", labels=("stage",)
    )
    for stage, seconds in (
        ("queue", totals.queue_s),
        ("prefill", totals.prefill_s),
        ("decode", totals.decode_s),
    ):
        stages.add_metric((stage,), seconds)
    yield stages


def _runner_metrics(status: EngineStatus) -> Iterator[Metric]:
    runner = status.runner
    yield _gauge("sessions_kept", "Conversations kept for their next request.", runner.sessions)
    yield _gauge("spill_bytes", "Disk space of copies of pages that left this host.", runner.spill_bytes)
    yield _gauge("spill_pages", "Pages with a copy on disk, each with all layers.", runner.spill_pages)
    yield _counter(
        "spill_partials", "Answers over held pages that came from the spill.", runner.spill_partials
    )
    reads = CounterMetricFamily(
        "backburner_long_reads",
        "Long reads: split with workers, not split though wanted (whole), or gone on without their workers (lost, "
        "counted under split too).",
        labels=("outcome",),
    )
    for outcome, count in (
        ("split", runner.split_reads),
        ("whole", runner.whole_reads),
        ("lost", runner.lost_reads),
    ):
        reads.add_metric((outcome,), count)
    yield reads
    yield _counter("split_tokens", "Prompt tokens whose last layers ran on workers.", runner.split_tokens)
    yield _counter(
        "split_worker_seconds", "Time that workers computed for split reads.", runner.split_worker_s
    )
    if runner.seam is not None:
        yield _gauge("seam_layer", "The first layer that workers ran in the last split read.", runner.seam)


_Field = tuple[str, str, Callable[[WorkerStatus], float]]

_WORKER_GAUGES: tuple[_Field, ...] = (
    ("rtt_seconds", "Round trip, measured when the link was opened.", lambda w: w.rtt_us / 1e6),
    ("bandwidth_bytes_per_second", "Measured when the link was opened.", lambda w: w.bytes_per_s),
    ("held_pages", "(page, layer) pairs of the running or last request.", lambda w: w.held_pages),
    ("stored_pages", "(page, layer) pairs in its store.", lambda w: w.stored_pages),
    ("memory_bytes", "For pages.", lambda w: w.memory_bytes),
    ("used_bytes", "Of its memory for pages.", lambda w: w.used_bytes),
    ("up", "Whether the worker is there.", lambda w: w.state == "ready"),
)
_WORKER_COUNTERS: tuple[_Field, ...] = (
    ("reconnects", "How often it was lost and came back.", lambda w: w.reconnects),
    ("sent_bytes", "Over the link to the worker.", lambda w: w.bytes_sent),
    ("received_bytes", "Over the link from the worker.", lambda w: w.bytes_received),
    ("exchanges", "Requests over the link that were answered.", lambda w: w.exchanges),
    ("moved_pages", "(page, layer) pairs sent to the worker.", lambda w: w.moved_pages),
    ("found_pages", "(page, layer) pairs that the worker had already.", lambda w: w.found_pages),
)


# Of workers that bake; the others have no such rows.
_BAKE_GAUGES = (
    ("pages", "(run of pages, layer) pairs that are Core ML models in its memory."),
    ("baking", "1 while it bakes one."),
    ("refused", "Pairs that stay with its ordinary engine."),
    ("shed", "Given up for want of memory, since it was started."),
    ("reused", "Found on its disk, since it was started."),
    ("bytes", "Of memory; counted in its used bytes, too."),
    ("share", "Of the old keys of short queries: what baked pages answered for."),
)


def _worker_metrics(workers: tuple[WorkerStatus, ...]) -> Iterator[Metric]:
    # The number tells two loopback workers apart, which have one address.
    labels = [(str(number), worker.address) for number, worker in enumerate(workers)]
    names = ("worker", "address")
    for name, text, value in _WORKER_GAUGES:
        gauge = GaugeMetricFamily(f"backburner_worker_{name}", text, labels=names)
        for label, worker in zip(labels, workers, strict=True):
            gauge.add_metric(label, value(worker))
        yield gauge
    baking = [(label, worker.bake) for label, worker in zip(labels, workers, strict=True) if worker.bake]
    for name, text in _BAKE_GAUGES if baking else ():
        gauge = GaugeMetricFamily(f"backburner_worker_bake_{name}", text, labels=names)
        for label, bake in baking:
            gauge.add_metric(label, float(bake[name]))
        yield gauge
    for name, text, value in _WORKER_COUNTERS:
        counter = CounterMetricFamily(f"backburner_worker_{name}", text, labels=names)
        for label, worker in zip(labels, workers, strict=True):
            counter.add_metric(label, value(worker))
        yield counter


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"backburner_{name}", text, value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"backburner_{name}", text, value)
