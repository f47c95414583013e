"""From a request's fields to a GenerationRequest: body, model name, template, tokens, limits. Blocking."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import ValidationError

from backburner.api.errors import ApiError, InvalidRequestError, context_exceeded, from_validation
from backburner.api.schemas import ChatBody, CompletionBody, GenerationBody, ModelBody
from backburner.api.settings import Api, ApiSettings
from backburner.api.turn import Turn
from backburner.engine.request import GenerationRequest, SamplingParams

T = TypeVar("T")
B = TypeVar("B", bound=ModelBody)


def served_names(settings: ApiSettings) -> set[str]:
    name = settings.model_id
    return {name, name.rstrip("/").rsplit("/", 1)[-1], *settings.aliases}


def check_model(settings: ApiSettings, name: str | None) -> None:
    """Only the served model is known. A request that names none means it."""
    if name is not None and name not in served_names(settings):
        raise ApiError(
            404,
            f"the model {name[:200]!r} does not exist; this server has {settings.model_id!r}",
            code="model_not_found",
            param="model",
        )


def validated(api: Api, fields: dict[str, Any], kind: type[B]) -> B:
    """A request's fields as a body of this kind, for the served model."""
    try:
        body = kind.model_validate(fields)
    except ValidationError as e:
        raise from_validation(e) from e
    check_model(api.settings, body.model)
    return body


def completion_prompts(api: Api, body: CompletionBody) -> list[list[int]]:
    vocabulary = len(api.tokenizer)
    prompts: list[list[int]] = []
    for prompt in body.prompt:
        tokens = api.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        if not tokens:
            raise InvalidRequestError("the prompt is empty", param="prompt")
        if any(not 0 <= token < vocabulary for token in tokens):
            raise InvalidRequestError(f"a token id is outside [0, {vocabulary})", param="prompt")
        prompts.append(tokens)
    return prompts


def choices_of(
    api: Api, body: ChatBody, request_id: str, turn: Turn, choices: int
) -> list[GenerationRequest]:
    """One request for each choice. With a seed, each of them has its own: the same ones every time."""
    prompt = api.tokenizer.encode(turn.text, add_special_tokens=False)
    first = generation_request(
        api, body, request_id, prompt, body.max_completion_tokens or body.max_tokens, "messages"
    )
    first = replace(first, grammar=turn.grammar)
    return [first, *(another(first, i) for i in range(1, choices))]


def another(first: GenerationRequest, index: int) -> GenerationRequest:
    """The same request as a further choice."""
    seed = first.sampling.seed
    sampling = first.sampling if seed is None else replace(first.sampling, seed=(seed + index) % 2**64)
    return replace(first, request_id=f"{first.request_id}-{index}", sampling=sampling)


def generation_request(
    api: Api, body: GenerationBody, request_id: str, prompt: Sequence[int], max_tokens: int | None, param: str
) -> GenerationRequest:
    """Applies defaults and limits. `param` names the field to blame when the prompt is too long."""
    ctx_size = api.effective_ctx_size()
    room = ctx_size - len(prompt)
    if room < 1:
        raise context_exceeded(len(prompt), ctx_size, param)
    return GenerationRequest(
        request_id=request_id,
        prompt=tuple(prompt),
        max_tokens=min(room, max_tokens or api.settings.max_tokens or room),
        sampling=_sampling(api, body),
        stop=tuple(body.stop),
        ignore_eos=bool(body.ignore_eos),
        logprobs=body.logprobs_wanted,
    )


def _sampling(api: Api, body: GenerationBody) -> SamplingParams:
    default, vocabulary = api.settings.sampling, len(api.tokenizer)
    # -1 means "random" to llama.cpp and Ollama clients; other negative seeds keep their 64 bits.
    seed = default.seed if body.seed is None else None if body.seed == -1 else body.seed % 2**64
    if any(token >= vocabulary for token, _ in body.logit_bias):
        raise InvalidRequestError(f"a token id is outside [0, {vocabulary})", param="logit_bias")

    def given(value: T | None, other: T) -> T:
        return other if value is None else value

    penalty = body.repetition_penalty if body.repetition_penalty is not None else body.repeat_penalty
    return SamplingParams(
        temperature=given(body.temperature, default.temperature),
        top_p=given(body.top_p, default.top_p),
        top_k=max(given(body.top_k, default.top_k), 0),
        min_p=given(body.min_p, default.min_p),
        seed=seed,
        presence_penalty=given(body.presence_penalty, default.presence_penalty),
        frequency_penalty=given(body.frequency_penalty, default.frequency_penalty),
        repetition_penalty=given(penalty, default.repetition_penalty),
        logit_bias=body.logit_bias or default.logit_bias,
    )
