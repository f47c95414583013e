"""What the endpoint is told at start, and the parts that every route shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from backburner.api.metrics import Metrics
from backburner.api.parsing.history import ArgumentsForms
from backburner.api.threads import Threads
from backburner.engine.request import EngineClient, SamplingParams

if TYPE_CHECKING:
    from backburner.api.reply import Reply


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """The endpoint's own settings; everything about the model itself belongs to the engine."""

    model_id: str  # as served: echoed in every answer
    ctx_size: int
    aliases: tuple[str, ...] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None  # None: up to the end of the context
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=lambda: {"enable_thinking": False})
    bound_host: str = "127.0.0.1"
    api_keys: tuple[str, ...] = ()  # none: whoever reaches the port may use it
    cors_origins: tuple[str, ...] = ()  # that pages may call from; "*": any
    # Long prompts of 262k tokens are about 1 MiB of text; tool results pasted as JSON need more.
    max_body_bytes: int = 32 * 1024 * 1024
    body_idle_s: float = 60.0
    # Proxies and undici give up after 30 to 300 s of silence; comments at least every 10 s keep them.
    keep_alive_s: float = 5.0
    # A client that takes nothing for this long is gone in all but name.
    write_stall_s: float = 60.0


class Tokenizer(Protocol):
    """The part of mlx-lm's TokenizerWrapper that the endpoint uses."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: list[int]) -> str: ...

    def apply_chat_template(self, messages: list[dict[str, Any]], **kwargs: Any) -> Any: ...

    def __len__(self) -> int: ...


@dataclass(slots=True)
class Api:
    """The parts that every route shares. `replies` are the requests that are being answered."""

    engine: EngineClient
    tokenizer: Tokenizer
    settings: ApiSettings
    arguments_forms: ArgumentsForms = field(default_factory=ArgumentsForms)
    replies: set[Reply] = field(default_factory=set)
    threads: Threads = field(default_factory=Threads)
    metrics: Metrics = field(init=False)

    def __post_init__(self) -> None:
        self.metrics = Metrics(self.engine)

    def effective_ctx_size(self) -> int:
        """The context a request can really use: the engine may have less memory than was asked for."""
        status = self.engine.status()
        # A dead engine has no context of its own; its requests fail with 503, not as too long.
        return min(self.settings.ctx_size, status.ctx_size) if status.alive else self.settings.ctx_size
