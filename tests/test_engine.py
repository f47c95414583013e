"""The engine thread: order, events, cancelling at every stage, faults, shutting down."""

import threading
import time
from dataclasses import dataclass, field

import pytest

from backburner.engine.engine import Engine
from backburner.engine.request import (
    Delta,
    Event,
    Failed,
    Finished,
    GenerationRequest,
    Progress,
    RunnerStatus,
    SamplingParams,
)
from backburner.engine.restarts import Restarts
from backburner.engine.runner import ModelRunner
from backburner.engine.sampling import Chosen, Score
from backburner.engine.scheduler import UBATCH_TOKENS, Decode, Prefill, next_step
from backburner.errors import BackburnerError, ContextExceeded, EngineDead, LinkClosed, ModelError, QueueFull
from tests.host import chat, host, tokenizer, until

END = -1  # no count reaches it


@dataclass
class Text:
    """Text of a token is its number."""

    stop: str | None = None
    stopped: bool = False

    def push(self, token_id: int) -> str:
        self.stopped = str(token_id) == self.stop
        return "" if self.stopped else f"{token_id} "

    @property
    def stopped_by(self) -> str | None:
        return self.stop if self.stopped else None

    def finish(self) -> str:
        return ""


@dataclass
class ScriptedRunner:
    """Counts upwards from 1; ends with END after `answer` tokens; fails or waits where it is told to."""

    answer: int = 5
    ctx_size: int = 1000
    model_name: str = "scripted"
    kept: int = 0  # leading prompt tokens that need no reading
    ubatches: int = 1  # in a step
    fault_at: dict[str, BaseException] = field(default_factory=dict)
    gate: threading.Event | None = None
    entered: threading.Event = field(default_factory=threading.Event)
    log: list[str] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)

    def _step(self, name: str) -> None:
        self.threads.add(threading.get_ident())
        self.log.append(name)
        self.entered.set()
        if self.gate is not None:
            assert self.gate.wait(10)
        if name in self.fault_at:
            raise self.fault_at.pop(name)

    def start(self, request):
        self._step(f"start {request.request_id}")
        return {"id": request.request_id, "n": 0, "prompt": len(request.prompt)}

    def text(self, request):
        return Text(request.stop[0] if request.stop else None)

    def read_from(self, state):
        return min(self.kept, state["prompt"] - 1)

    def step_tokens(self, state):
        return self.ubatches * UBATCH_TOKENS

    def prefill(self, state, start, stop):
        self._step(f"prefill {start}-{stop}")
        return self._token(state) if stop == state["prompt"] else None

    def decode(self, state):
        self._step("decode")
        return self._token(state)

    def _token(self, state):
        state["n"] += 1
        token = END if state["n"] > self.answer else state["n"]
        return Chosen(token, Score(-float(state["n"]), ()))

    def token_bytes(self, token):
        return f"{token} ".encode()

    def is_end(self, token):
        return token == END

    def finish(self, state):
        self.log.append(f"finish {state['id']}")

    def worker_statuses(self):
        return ()

    def status(self):
        return RunnerStatus(sessions=2)

    def close(self):
        self.log.append("close")

    def leave_thread(self):
        assert threading.get_ident() in self.threads or not self.threads


class Collector:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.done = threading.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Finished | Failed):
            self.done.set()

    def result(self) -> Event:
        assert self.done.wait(10), f"no end in {self.events}"
        return self.events[-1]

    @property
    def text(self) -> str:
        return "".join(e.text for e in self.events if isinstance(e, Delta))

    @property
    def tokens(self) -> list[int]:
        return [t for e in self.events if isinstance(e, Delta) for t in e.token_ids]


@pytest.fixture
def started():
    engines = []

    def start(runner) -> Engine:
        engine = Engine(lambda: runner, "scripted")
        engine.start()
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        engine.close()


def request(name: str = "a", prompt: int = 10, max_tokens: int = 100, **kwargs) -> GenerationRequest:
    return GenerationRequest(name, tuple(range(prompt)), max_tokens, **kwargs)


def test_a_read_goes_in_ubatches_with_the_same_boundaries() -> None:
    steps, read = [], 0
    while isinstance(step := next_step(600, read, 256), Prefill):
        steps.append((step.start, step.stop))
        read = step.stop
    assert steps == [(0, 256), (256, 512), (512, 600)]
    assert next_step(600, 600, 256) == Decode()


def test_events_come_in_order_and_end_once(started) -> None:
    runner, got = ScriptedRunner(), Collector()
    started(runner).submit(request(prompt=300), got)
    assert got.result() == Finished("stop", 300, 6)
    assert [e for e in got.events if isinstance(e, Progress)] == [Progress(256, 300), Progress(300, 300)]
    assert got.text == "1 2 3 4 5 "
    assert got.tokens == [1, 2, 3, 4, 5, END]
    assert len(runner.threads) == 1
    assert threading.get_ident() not in runner.threads


def test_a_full_queue_refuses_by_name_and_lets_in_what_belongs_to_an_admitted_request() -> None:
    runner = ScriptedRunner(gate=threading.Event())
    engine: Engine = Engine(lambda: runner, "scripted", max_queue=2)
    engine.start()
    try:
        got = [Collector() for _ in range(4)]
        engine.submit(request("runs"), got[0])
        assert runner.entered.wait(10)
        engine.submit(request("waits"), got[1])
        handle = engine.submit(request("leaves"), Collector())
        with pytest.raises(QueueFull, match="2 requests wait already"):
            engine.submit(request("late"), Collector())
        assert engine.status().full
        engine.submit(request("second choice", admitted=True), got[2])
        handle.cancel()
        assert engine.status().waiting == 2
        with pytest.raises(QueueFull):
            engine.submit(request("late again"), Collector())
        runner.gate.set()
        assert all(isinstance(one.result(), Finished) for one in got[:3])
        engine.submit(request("now"), got[3])
        assert isinstance(got[3].result(), Finished)
        order = [line for line in runner.log if line.startswith("finish ")]
        assert order == ["finish runs", "finish waits", "finish second choice", "finish now"]
    finally:
        runner.gate.set()
        engine.close()


def test_totals_count_tokens_seconds_and_how_requests_end(started) -> None:
    runner = ScriptedRunner(kept=4)
    engine = started(runner)
    before = engine.status().totals
    assert (before.finished, before.read_tokens) == (0, 0)
    got = Collector()
    engine.submit(request(prompt=10), got)
    got.result()
    runner.fault_at["prefill 4-10"] = LinkClosed("gone")
    failed = Collector()
    engine.submit(request("b", prompt=10), failed)
    assert isinstance(failed.result(), Failed)
    until(lambda: engine.status().running == 0)
    status = engine.status()
    totals = status.totals
    assert (totals.finished, totals.failed, totals.cancelled) == (1, 1, 0)
    assert (totals.read_tokens, totals.cached_tokens, totals.generated_tokens) == (6, 8, 6)
    assert totals.prefill_s > 0
    assert totals.decode_s > 0
    assert totals.queue_s > 0
    assert status.runner.sessions == 2


def test_what_a_conversation_has_read_before_is_reported_and_not_read_again(started) -> None:
    runner, got = ScriptedRunner(kept=256, ubatches=2), Collector()
    started(runner).submit(request(prompt=900), got)
    assert got.result() == Finished("stop", 900, 6, cached_tokens=256)
    assert [line for line in runner.log if line.startswith("prefill")] == [
        "prefill 256-768",
        "prefill 768-900",
    ]
    assert [e for e in got.events if isinstance(e, Progress)] == [Progress(768, 900), Progress(900, 900)]


def test_length_stop_string_and_ignored_end(started) -> None:
    engine = started(ScriptedRunner(answer=3))
    for kwargs, reason, count in (
        ({"max_tokens": 2}, "length", 2),
        ({"max_tokens": 1}, "length", 1),
        ({"stop": ("2",)}, "stop", 2),
        ({"max_tokens": 6, "ignore_eos": True}, "length", 6),
    ):
        got = Collector()
        engine.submit(request(**kwargs), got)
        assert got.result() == Finished(reason, 10, count, stop="2" if "stop" in kwargs else None)


def test_the_context_bounds_the_answer(started) -> None:
    engine, got = started(ScriptedRunner(ctx_size=12)), Collector()
    engine.submit(request(prompt=10), got)
    assert got.result() == Finished("length", 10, 2)
    with pytest.raises(ContextExceeded):
        engine.submit(request(prompt=12), Collector())


def test_requests_run_one_at_a_time_in_order(started) -> None:
    runner = ScriptedRunner(answer=2, gate=threading.Event())
    engine, all_got = started(runner), [Collector() for _ in range(4)]
    for i, got in enumerate(all_got):
        engine.submit(request(str(i)), got)
    assert runner.entered.wait(5)
    assert (engine.status().running, engine.status().waiting) == (1, 3)
    runner.gate.set()
    for got in all_got:
        got.result()
    marks = [line for line in runner.log if line.startswith(("start", "finish"))]
    assert marks == [f"{what} {i}" for i in range(4) for what in ("start", "finish")]


def test_cancelling_a_waiting_request_never_runs_it(started) -> None:
    runner = ScriptedRunner(gate=threading.Event())
    engine, first, second, third = started(runner), Collector(), Collector(), Collector()
    engine.submit(request("a"), first)
    handle = engine.submit(request("b"), second)
    engine.submit(request("c"), third)
    assert runner.entered.wait(5)
    handle.cancel()
    handle.cancel()
    assert engine.status().waiting == 1
    runner.gate.set()
    third.result()
    assert second.events == []
    assert "start b" not in runner.log


@pytest.mark.parametrize("stage", ["prefill", "decode"])
def test_cancelling_a_running_request_stops_within_one_step(started, stage: str) -> None:
    runner = ScriptedRunner(answer=10**9, ctx_size=10**10)
    engine, got, other = started(runner), Collector(), Collector()
    handle = engine.submit(request(prompt=900, max_tokens=10**9), got)
    while not any(line.startswith(stage) for line in runner.log):
        time.sleep(0.001)
    handle.cancel()
    engine.submit(request("next", max_tokens=3), other)
    assert isinstance(other.result(), Finished)
    assert not any(isinstance(e, Finished | Failed) for e in got.events)
    assert "finish a" in runner.log


@pytest.mark.parametrize("at", ["start a", "prefill 0-10", "decode"])
@pytest.mark.parametrize("error", [LinkClosed("cable"), ValueError("bug"), MemoryError()])
def test_a_fault_fails_one_request_and_the_next_is_served(started, at: str, error: Exception) -> None:
    runner = ScriptedRunner(fault_at={at: error})
    engine, got, other = started(runner), Collector(), Collector()
    engine.submit(request("a"), got)
    engine.submit(request("b"), other)
    failed = got.result()
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, LinkClosed if isinstance(error, LinkClosed) else BackburnerError)
    assert other.result() == Finished("stop", 10, 6)
    assert engine.status().alive


def engine_of(*runners: ScriptedRunner | BaseException, **options) -> Engine:
    """An engine whose lives have these runners, or cannot be made."""
    lives = iter(runners)

    def make() -> ScriptedRunner:
        runner = next(lives)
        if isinstance(runner, BaseException):
            raise runner
        return runner

    engine: Engine = Engine(make, "scripted", **options)
    engine.start()
    return engine


def test_after_its_death_the_engine_starts_again_and_goes_on_with_what_waits() -> None:
    first = ScriptedRunner(gate=threading.Event(), fault_at={"decode": SystemExit("broken")})
    second = ScriptedRunner(answer=2, ctx_size=400)
    engine = engine_of(first, second)
    try:
        got, waiting, later = Collector(), Collector(), Collector()
        engine.submit(request("a"), got)
        engine.submit(request("b"), waiting)
        first.gate.set()
        failed = got.result()
        assert isinstance(failed, Failed)
        assert failed.error.code == "internal_error", "nobody is to send again what may have done it"
        assert waiting.result() == Finished("stop", 10, 3)
        engine.submit(request("c"), later)
        assert later.result() == Finished("stop", 10, 3)
        assert [line for line in first.log if line.startswith("start")] == ["start a"]
        assert first.log[-1] == "close"
        status = engine.status()
        assert (status.alive, status.restarting, status.restarts, status.ctx_size) == (True, False, 1, 400)
        assert len(first.threads | second.threads) == 2
    finally:
        engine.close()
    assert second.log[-1] == "close"


def test_while_it_starts_again_it_says_so_and_takes_requests() -> None:
    release, made = threading.Event(), []

    def make() -> ScriptedRunner:
        made.append(ScriptedRunner(fault_at={} if made else {"decode": SystemExit("broken")}))
        if len(made) > 1:
            assert release.wait(10)
        return made[-1]

    engine: Engine = Engine(make, "scripted", max_queue=1)
    engine.start()
    try:
        first, second, third = Collector(), Collector(), Collector()
        engine.submit(request("a"), first)
        assert isinstance(first.result(), Failed)
        until(lambda: engine.status().restarting)
        status = engine.status()
        assert (status.alive, status.ctx_size) == (False, 1000)
        assert "restarted: SystemExit: broken" in status.error
        engine.submit(request("b"), second)
        engine.submit(request("c"), third)
        with pytest.raises(QueueFull):
            engine.submit(request("d"), Collector())
        release.set()
        assert isinstance(second.result(), Finished)
        assert isinstance(third.result(), Finished)
        assert engine.status().alive
    finally:
        release.set()
        engine.close()


def test_while_the_failed_runner_is_closed_what_waits_is_told_to_wait_on() -> None:
    closing, release = threading.Event(), threading.Event()

    class SlowToClose(ScriptedRunner):
        def close(self):
            closing.set()
            assert release.wait(10)

    engine = engine_of(SlowToClose(fault_at={"decode": SystemExit("broken")}), ScriptedRunner())
    try:
        failed, waiting = Collector(), Collector()
        engine.submit(request("a"), failed)
        assert isinstance(failed.result(), Failed)
        assert closing.wait(10)
        status = engine.status()
        assert (status.alive, status.restarting) == (False, True)
        assert "restarted: SystemExit: broken" in status.error
        engine.submit(request("b"), waiting)
        release.set()
        assert isinstance(waiting.result(), Finished)
    finally:
        release.set()
        engine.close()


def test_a_queued_prompt_that_no_longer_fits_after_a_restart_fails_alone() -> None:
    first = ScriptedRunner(gate=threading.Event(), fault_at={"prefill 0-10": SystemExit()})
    engine = engine_of(first, ScriptedRunner(ctx_size=20))
    try:
        got = [Collector() for _ in range(3)]
        for collector, size in zip(got, (10, 30, 10), strict=True):
            engine.submit(request(prompt=size), collector)
        first.gate.set()
        failed = got[1].result()
        assert isinstance(failed, Failed)
        assert isinstance(failed.error, ContextExceeded)
        assert isinstance(got[2].result(), Finished)
    finally:
        engine.close()


def test_a_dead_engine_says_so_and_fails_what_waits() -> None:
    runner = ScriptedRunner(gate=threading.Event(), fault_at={"decode": KeyboardInterrupt()})
    engine = engine_of(
        runner, ModelError("no memory"), ModelError("no memory"), restarts=Restarts(pauses_s=(0.0, 0.01))
    )
    got, waiting = Collector(), Collector()
    engine.submit(request("a"), got)
    engine.submit(request("b"), waiting)
    runner.gate.set()
    failed = waiting.result()
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, EngineDead)
    status = engine.status()
    assert (status.alive, status.restarting, status.restarts) == (False, False, 2)
    assert "ModelError: no memory" in str(status.error)
    with pytest.raises(EngineDead):
        engine.submit(request(), Collector())
    engine.close()


def test_closing_does_not_wait_for_a_restart_to_begin() -> None:
    runner = ScriptedRunner(fault_at={"decode": SystemExit()})
    engine = engine_of(runner, restarts=Restarts(pauses_s=(3600.0,)))
    got, waiting = Collector(), Collector()
    engine.submit(request("a"), got)
    engine.submit(request("b"), waiting)
    got.result()
    until(lambda: engine.status().restarting)
    engine.close()
    failed = waiting.result()
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, EngineDead)
    assert not engine._thread.is_alive()


def test_the_real_runner_is_made_again_and_gives_the_same_answer() -> None:
    runners = []

    def make() -> ModelRunner:
        runners.append(host().__enter__())
        return runners[-1]

    engine: Engine = Engine(make, "tiny")
    engine.start()
    try:
        before = answer(engine, chat("Hi, I am Maria."), max_tokens=20)

        def breaks(state):
            raise SystemExit("broken")

        runners[0].decode = breaks
        failed, after = Collector(), Collector()
        for got in (failed, after):
            engine.submit(GenerationRequest("r", tuple(chat("Hi, I am Maria.")), 20), got)
        assert isinstance(failed.result(), Failed)
        assert after.done.wait(60)
        assert after.tokens == before.tokens
        assert len(runners) == 2
    finally:
        engine.close()


def test_restarts_are_limited_within_a_while_and_not_for_ever() -> None:
    restarts = Restarts(pauses_s=(0.0, 5.0), window_s=100.0)
    assert [restarts.next(now) for now in (0.0, 50.0, 90.0)] == [0.0, 5.0, None]
    assert [restarts.next(now) for now in (100.0, 149.0, 150.0)] == [5.0, None, 5.0]
    assert restarts.total == 4


def test_closing_ends_the_running_request_and_what_waits(started) -> None:
    runner = ScriptedRunner(answer=10**9, ctx_size=10**10)
    engine, got, waiting = started(runner), Collector(), Collector()
    engine.submit(request("a", max_tokens=10**9), got)
    engine.submit(request("b"), waiting)
    while "decode" not in runner.log:
        time.sleep(0.001)
    engine.close()
    for collector in (got, waiting):
        result = collector.result()
        assert isinstance(result, Failed)
        assert isinstance(result.error, EngineDead)
    assert runner.log[-1] == "close"


def test_a_runner_that_cannot_be_made_raises_at_start() -> None:
    def make():
        raise ModelError("no such model")

    with pytest.raises(ModelError, match="no such model"):
        Engine(make, "x").start()


@pytest.fixture(scope="module")
def real():
    """The engine with tiny, made and run on its own thread."""
    made = []

    def make():
        context = host()
        made.append(context)
        return context.__enter__()

    engine = Engine(make, "tiny")
    engine.start()
    yield engine
    engine.close()


def answer(engine: Engine, prompt: list[int], **kwargs) -> Collector:
    got = Collector()
    engine.submit(GenerationRequest("r", tuple(prompt), **kwargs), got)
    got.result()
    return got


def test_the_real_runner_answers_in_text(real) -> None:
    got = answer(real, chat("Hi, I am Maria."), max_tokens=40)
    assert got.text == tokenizer().decode(got.tokens[:-1])
    assert "Maria" in got.text
    assert got.result() == Finished("stop", len(chat("Hi, I am Maria.")), len(got.tokens))


def test_a_seed_fixes_the_draws_and_no_seed_varies_them(real) -> None:
    prompt = chat("Tell me something.")

    def draw(seed: int | None) -> list[int]:
        sampling = SamplingParams(temperature=2.5, top_p=0.99, seed=seed)
        return answer(real, prompt, max_tokens=24, sampling=sampling, ignore_eos=True).tokens

    assert draw(7) == draw(7)
    assert draw(7) != draw(8)
    assert draw(None) != draw(None)


def test_top_k_one_and_temperature_zero_are_greedy(real) -> None:
    prompt = chat("What is Backburner?")
    greedy = answer(real, prompt, max_tokens=16).tokens
    for sampling in (
        SamplingParams(temperature=1.0, top_k=1),
        SamplingParams(temperature=1.0, top_p=1e-6),
        SamplingParams(temperature=1.0, min_p=1.0),
    ):
        assert answer(real, prompt, max_tokens=16, sampling=sampling).tokens == greedy


@pytest.mark.parametrize("top_k", [3071, 3072, 5000, 10**9])
def test_a_top_k_beyond_the_vocabulary_keeps_all(real, top_k: int) -> None:
    sampling = SamplingParams(temperature=0.7, top_k=top_k, seed=1)
    assert answer(real, chat("Hello!"), max_tokens=4, sampling=sampling, ignore_eos=True).tokens
