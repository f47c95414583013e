"""How many positions fit: on the host, on the worker, and so in the context."""

from collections.abc import Sequence
from dataclasses import dataclass

from backburner.config import SEQUENCE_PAGES_MAX
from backburner.errors import ConfigError

# Of the memory free after the model is loaded; the rest is for activations, partials and everybody else.
HOST_KV_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class Capacity:
    """Positions that fit, and what bounds them."""

    token_bytes: int  # K and V of one position over all attention layers
    host_tokens: int
    worker_tokens: int
    model_tokens: int  # the model's own limit

    @property
    def total_tokens(self) -> int:
        return min(self.host_tokens + self.worker_tokens, self.model_tokens)


def capacity(
    page_bytes: int,
    page_tokens: int,
    layers: int,
    host_free_bytes: int,
    worker_free_bytes: Sequence[int],
    model_tokens: int,
) -> Capacity:
    """What host and workers can hold together. Half a page at each of two workers is none.

    page_bytes: of one layer's page as the engine lays it out. worker_free_bytes: of each worker.
    """
    page_bytes *= layers
    token_bytes = -(-page_bytes // page_tokens)
    worker_pages = min(sum(free // page_bytes for free in worker_free_bytes), SEQUENCE_PAGES_MAX)
    return Capacity(
        token_bytes=token_bytes,
        host_tokens=int(host_free_bytes * HOST_KV_SHARE) // page_bytes * page_tokens,
        worker_tokens=worker_pages * page_tokens,
        model_tokens=model_tokens,
    )


def context_size(asked: int | None, cap: Capacity) -> int:
    """The context to serve. Raises ConfigError when more is asked for than can be held."""
    if asked is None:
        return cap.total_tokens
    if asked > cap.model_tokens:
        raise ConfigError(f"--ctx-size {asked}: the model's own limit is {cap.model_tokens} tokens.")
    if asked > cap.total_tokens:
        raise ConfigError(
            f"--ctx-size {asked} does not fit: a token's K and V take {cap.token_bytes} bytes, so the host can hold "
            f"{cap.host_tokens} and the worker {cap.worker_tokens}. Give at most {cap.total_tokens}, "
            f"or a worker with more --memory (it holds at most {SEQUENCE_PAGES_MAX} pages of a conversation)."
        )
    return asked
