"""What runs next: first come, first served, one request at a time, a read in ubatches and then token by token. Pure."""

from collections import deque
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

# Chunks of the read. 256 fills the pipeline of split prefill (facts of the first Backburner); on one CPU core it is
# within 3 % of 512.
UBATCH_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Prefill:
    """Read prompt tokens [start, stop). The same boundaries in every mode, or the bits would differ."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Decode:
    """Run the newest token and choose the next."""


Step = Prefill | Decode


def next_step(prompt_tokens: int, read: int, ubatch_tokens: int = UBATCH_TOKENS) -> Step:
    """The step after `read` of `prompt_tokens` have been read."""
    if read < prompt_tokens:
        return Prefill(read, min(read + ubatch_tokens, prompt_tokens))
    return Decode()


class Cancellable(Protocol):
    @property
    def cancelled(self) -> bool: ...


J = TypeVar("J", bound=Cancellable)


class RequestQueue(Generic[J]):
    """Waiting requests in order of arrival. Not locked: the engine guards it."""

    def __init__(self) -> None:
        self._waiting: deque[J] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, job: J) -> None:
        self._waiting.append(job)

    def next(self) -> J | None:
        """The oldest request that still wants an answer; cancelled ones are dropped on the way."""
        while self._waiting:
            job = self._waiting.popleft()
            if not job.cancelled:
                return job
        return None

    def drain(self) -> list[J]:
        """All that wait, when none of them can be served."""
        jobs, self._waiting = list(self._waiting), deque()
        return jobs

    def forget(self, job: J) -> None:
        """Takes a cancelled request out, so that it no longer counts as waiting."""
        if job in self._waiting:
            self._waiting.remove(job)
