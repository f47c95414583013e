"""POST /v1/completions: raw prompts in, their continuations out."""

import codecs
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fastapi import Request, Response

from backburner.api.answer import respond
from backburner.api.body import parse_object, read_body
from backburner.api.format import Choice, ChoicesFormat, Envelope
from backburner.api.logprobs import TextLogprobs, joined
from backburner.api.prompt import another, completion_prompts, generation_request, validated
from backburner.api.schemas import CompletionBody, refuse_unsupported
from backburner.api.settings import Api
from backburner.engine.request import Delta, Finished, GenerationRequest, PromptLogprobs, TokenLogprob


async def completions(api: Api, request: Request) -> Response:
    raw = await read_body(request, api.settings.max_body_bytes, api.settings.body_idle_s)
    envelope = Envelope.new("cmpl", api.settings.model_id)
    body, generations, echoes = await api.threads.prepare(request.receive, _prepare, api, raw, envelope.id)
    kind = CompletionFormat(envelope, body.includes_usage, echoes, body.logprobs)
    return await respond(api, request, bool(body.stream), generations, kind)


def _prepare(
    api: Api, raw: bytes, request_id: str
) -> tuple[CompletionBody, list[GenerationRequest], list[str]]:
    """The body, a request for each choice of each prompt, and what each choice begins with."""
    fields = parse_object(raw)
    refuse_unsupported(fields)
    body = validated(api, fields, CompletionBody)
    generations: list[GenerationRequest] = []
    echoes: list[str] = []
    scores_prompt = bool(body.echo) and body.logprobs is not None
    for number, (given, tokens) in enumerate(zip(body.prompt, completion_prompts(api, body), strict=True)):
        first = generation_request(api, body, f"{request_id}-{number}", tokens, body.max_tokens, "prompt")
        first = replace(first, prompt_logprobs=scores_prompt)
        generations += [first, *(another(first, i) for i in range(1, body.n or 1))]
        echo = ""
        if body.echo and not scores_prompt:
            echo = given if isinstance(given, str) else api.tokenizer.decode(given)
        echoes += [echo] * (body.n or 1)
    return body, generations, echoes


class CompletionChoice:
    """One continuation, with its prompt in front where that was asked for."""

    def __init__(
        self,
        index: int,
        echo: str,
        top: int | None,
        chunk: Callable[[dict[str, Any]], dict[str, Any]],
        keeps: bool,
    ) -> None:
        """top: alternatives to each token; None: no logprobs. keeps: what came, for `whole`."""
        self._index = index
        self._echo = echo
        self._top = top
        self._chunk = chunk
        self._keeps = keeps
        self._lists = TextLogprobs()
        self._prompt = codecs.getincrementaldecoder("utf-8")("replace")
        self._texts: list[str] = []
        self._blocks: list[dict[str, Any]] = []
        self._finished: Finished | None = None

    def opening(self) -> Iterable[dict[str, Any]]:
        if self._echo:
            yield self._send(self._echo, ())

    def prompt(self, event: PromptLogprobs) -> Iterable[dict[str, Any]]:
        # As text the joined bytes of the tokens: one that is part of a character has none of its own.
        text = self._prompt.decode(b"".join(t.bytes for t in event.tokens))
        yield self._send(text, event.tokens)

    def delta(self, event: Delta) -> Iterable[dict[str, Any]]:
        yield self._send(self._prompt.decode(b"", final=True) + event.text, event.logprobs)

    def closing(self, event: Finished) -> Iterable[dict[str, Any]]:
        self._finished = event
        if cut := self._prompt.decode(b"", final=True):
            yield self._send(cut, ())
        yield self._chunk(self._choice("", None, event.reason))

    def whole(self) -> dict[str, Any]:
        assert self._finished is not None
        scores = None if self._top is None else joined(self._blocks)
        return self._choice("".join(self._texts), scores, self._finished.reason)

    def _send(self, text: str, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        scores = None if self._top is None else self._lists.block(tokens, self._top)
        if self._keeps:
            self._texts.append(text)
            if scores is not None:
                self._blocks.append(scores)
        return self._chunk(self._choice(text, scores, None))

    def _choice(self, text: str, scores: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
        return {"index": self._index, "text": text, "logprobs": scores, "finish_reason": reason}


@dataclass(slots=True)
class CompletionFormat(ChoicesFormat):
    whole_kind: ClassVar[str] = "text_completion"
    chunk_kind: ClassVar[str] = "text_completion"

    echoes: Sequence[str]  # by choice
    top: int | None

    def choice(self, index: int, *, keeps: bool) -> Choice:
        return CompletionChoice(index, self.echoes[index], self.top, self.chunk, keeps)
