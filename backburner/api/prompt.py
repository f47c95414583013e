"""From a validated body to a GenerationRequest: model name, template, tokens, limits. Blocking."""

from collections.abc import Sequence

from backburner.api.errors import ApiError, InvalidRequestError, context_exceeded
from backburner.api.parsing import history
from backburner.api.schemas import ChatBody, CompletionBody, GenerationBody
from backburner.api.settings import Api, ApiSettings
from backburner.engine.request import GenerationRequest, SamplingParams

# Arguments of apply_chat_template itself; through chat_template_kwargs a client could replace the template.
RESERVED_TEMPLATE_KWARGS = frozenset(
    (
        "conversation",
        "messages",
        "tools",
        "documents",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "tokenizer_kwargs",
        "processor_kwargs",
    )
)


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


def chat_prompt(api: Api, body: ChatBody) -> list[int]:
    """The tokens of a conversation, ready for the assistant to speak."""
    kwargs = {**api.settings.chat_template_kwargs, **(body.chat_template_kwargs or {})}
    reserved = sorted(RESERVED_TEMPLATE_KWARGS.intersection(kwargs))
    if reserved:
        raise InvalidRequestError(f"{reserved[0]!r} cannot be set here", param="chat_template_kwargs")
    # The answer is not held to tool_choice, so "none" can only be kept by not offering any tool.
    tools = None if body.tool_choice == "none" else body.tools or None
    messages = history.for_template(
        [message.model_dump() for message in body.messages], api.tokenizer, api.arguments_forms
    )
    try:
        text = api.tokenizer.apply_chat_template(
            messages,
            tools=tools,
            add_generation_prompt=True,
            tokenize=False,
            **kwargs,
        )
    except history.TEMPLATE_ERRORS as e:
        raise InvalidRequestError(
            f"the chat template refuses these messages: {e}", param="messages", code="template_error"
        ) from e
    return api.tokenizer.encode(text, add_special_tokens=False)


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
        sampling=_sampling(api.settings.sampling, body),
        stop=tuple(body.stop),
        ignore_eos=bool(body.ignore_eos),
    )


def _sampling(default: SamplingParams, body: GenerationBody) -> SamplingParams:
    # -1 means "random" to llama.cpp and Ollama clients; other negative seeds keep their 64 bits.
    seed = default.seed if body.seed is None else None if body.seed == -1 else body.seed % 2**64
    return SamplingParams(
        temperature=default.temperature if body.temperature is None else body.temperature,
        top_p=default.top_p if body.top_p is None else body.top_p,
        top_k=default.top_k if body.top_k is None else max(body.top_k, 0),
        min_p=default.min_p if body.min_p is None else body.min_p,
        seed=seed,
    )
