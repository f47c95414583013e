"""What crosses between the API and the engine: a request going in, events coming out."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from backburner.errors import BackburnerError

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is chosen from the logits; `engine.sampling` has the order. temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    seed: int | None = None  # None: a fresh one for each request
    presence_penalty: float = 0.0  # of the answer's tokens
    frequency_penalty: float = 0.0  # of the answer's tokens
    repetition_penalty: float = 1.0  # of the prompt's and the answer's tokens; above 0; 1: off
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token, added to its logit)


@dataclass(frozen=True, slots=True)
class Grammar:
    """The answer is JSON, or what rules say. An end token comes when it is complete, and not before."""

    json_schema: str | None = None  # that `engine.grammar.check_grammar` has accepted; None: any object
    after: str | None = (
        None  # a text, such as "</think>", behind which it begins; None: the answer begins with it
    )
    rules: str | None = None  # a grammar in llguidance's Lark dialect, instead of a schema
    opening: int | None = None  # a token of its own that begins it before `after` has come, too


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt to answer. `stop` are strings that end the answer and are not part of it.

    logprobs: None: none; n: each token's, and the n most probable ones at its place.
    prompt_logprobs: the prompt's own as well, with as many alternatives as `logprobs` says (none if it is None). All of
    the prompt is read for that.
    ignore_eos: not with a grammar, whose last token is the end token.
    admitted: a further choice of what was let in before: it queues behind all others, and is not refused for being too
    many.
    """

    request_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    grammar: Grammar | None = None
    prompt_logprobs: bool = False
    admitted: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """Prefill has reached `done` of `total` prompt tokens."""

    done: int
    total: int


TopLogprob = tuple[int, str, bytes, float]  # token, text, bytes, logprob


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of a text, with its log probability in the model's own distribution."""

    token_id: int
    text: str  # U+FFFD for bytes that are only part of a character
    bytes: bytes
    logprob: float | None  # None: the first token of a prompt, which nothing precedes
    top: tuple[TopLogprob, ...] = ()  # best first


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """The next tokens of the prompt, in order, with their log probabilities. Comes after the Progress of a step."""

    tokens: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """More of the answer. `text` may be empty while a character or a stop string is undecided.

    `token_ids` are the tokens that were generated; `logprobs` are those of the tokens whose text is complete with this
    `text`. They lag behind when text is held back, and the last is cut where a stop string cuts its text. An end token,
    and parts of a character that is never completed, have no bytes: over all Deltas, the joined bytes of `logprobs` are
    those of the joined `text`.

    `ends`: instead of `token_ids` where Deltas were joined: up to where in `text` each token had come.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete; the last event of a request that succeeded."""

    reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    stop: str | None = None  # the stop string that ended it

    @property
    def cut(self) -> bool:
        """Whether the model would have gone on."""
        return self.reason == "length" or self.stop is not None


@dataclass(frozen=True, slots=True)
class Failed:
    """The request cannot go on; the last event of a request that failed."""

    error: BackburnerError


Event = Progress | PromptLogprobs | Delta | Finished | Failed

# Called on the engine thread, in order; it must return at once and must not raise.
Emit = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The worker as the host sees it, for /health and the log."""

    state: Literal["ready", "lost"]
    address: str
    name: str
    engine: str
    held_pages: int  # (page, layer) pairs bound for the running or last sequence
    stored_pages: int  # (page, layer) pairs in the worker's store
    memory_bytes: int
    used_bytes: int
    rtt_us: float
    bytes_per_s: float
    error: str | None = None
    reconnects: int = 0
    layers: tuple[int, int] | None = None  # [first, stop) that it ran in the last split read
    # Since the start, over all reconnects.
    bytes_sent: int = 0
    bytes_received: int = 0
    exchanges: int = 0  # requests over the link that were answered
    moved_pages: int = 0  # (page, layer) pairs sent to it
    found_pages: int = 0  # that it had already
    bake: dict[str, int | float | str] | None = (
        None  # its `transport.messages.BakeState`; None: it does not bake
    )


@dataclass(frozen=True, slots=True)
class RunnerStatus:
    """What the runner keeps besides what its workers have, and what became of its reads. Counts are since the start."""

    sessions: int = 0  # conversations kept for their next request
    spill_bytes: int = 0  # of files that are written or will be
    spill_pages: int = 0  # that are written, each with all layers
    spill_partials: int = 0  # answers over held pages that came from the spill
    split_reads: int = 0  # whose last layers ran on workers
    split_tokens: int = 0  # that workers have run in them
    split_worker_s: float = 0.0  # that workers have computed for them
    whole_reads: int = 0  # long ones that were not split, though that was wanted
    lost_reads: int = 0  # that went on without their workers
    seam: int | None = None  # of the last read; None: it was not split


@dataclass(frozen=True, slots=True)
class EngineTotals:
    """What the engine has done since it was started."""

    finished: int = 0  # requests
    failed: int = 0
    cancelled: int = 0
    read_tokens: int = 0  # of prompts
    cached_tokens: int = 0  # of prompts, that needed no reading
    generated_tokens: int = 0
    queue_s: float = 0.0  # from submission to the start of work
    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A snapshot that any thread may take."""

    alive: bool
    model: str
    ctx_size: int
    running: int
    waiting: int
    worker: WorkerStatus | None  # the first of `workers`
    error: str | None = None
    workers: tuple[WorkerStatus, ...] = ()
    max_queue: int | None = None  # requests that may wait
    totals: EngineTotals = field(default_factory=EngineTotals)
    runner: RunnerStatus = field(default_factory=RunnerStatus)
    restarting: bool = False  # not alive, but it will be: what waits may go on waiting
    restarts: int = 0  # that were begun since the start

    @property
    def full(self) -> bool:
        """Whether no further request is let in."""
        # One that waits while nothing runs is about to run.
        return self.max_queue is not None and self.waiting >= self.max_queue + (self.running == 0)


class Handle(Protocol):
    """A submitted request."""

    def cancel(self) -> None:
        """Stops the work within one step. Safe from any thread, at any time, more than once. No event follows."""
        ...


class EngineClient(Protocol):
    """The seam between the API and whatever generates tokens."""

    def submit(self, request: GenerationRequest, emit: Emit) -> Handle:
        """Queues a request. Raises EngineDead when nothing can be generated, QueueFull when too many wait."""
        ...

    def status(self) -> EngineStatus: ...

    def close(self) -> None: ...
