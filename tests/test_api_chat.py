"""Chat completions: what reaches the engine, and what comes back, whole and streamed."""

import inspect
import json
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from backburner.api.turn import RESERVED_TEMPLATE_KWARGS
from backburner.engine.request import SamplingParams
from tests.api_support import HI, MODEL, AsgiClient, asgi, error_of, frames, streamed_text
from tests.scripted_engine import Script, says, tiny_tokenizer


def prompt_of(client: AsgiClient) -> str:
    """The rendered prompt that reached the engine last."""
    text: str = tiny_tokenizer().decode(list(client.engine.requests[-1].prompt))
    return text


# As Qwen's templates do, in other words.
ONE_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('only the first message may be of the system') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


def call(arguments: Any, **fields: Any) -> list[dict[str, Any]]:
    """A replayed tool call and its result."""
    function = {"name": "look_up", "arguments": arguments}
    return [
        *HI,
        {
            "role": "assistant",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
            **fields,
        },
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]


def test_an_answer_has_openai_shape_and_usage() -> None:
    with asgi(says("hello world", cached_tokens=3)) as client:
        response = client.chat(model=MODEL)
        prompt_tokens = len(client.engine.requests[0].prompt)
    assert response.status_code == 200
    body = response.json()
    tokens = len(says("hello world").tokens)
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == MODEL
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello world"},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": prompt_tokens + tokens,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


def test_a_stream_sends_the_role_once_then_text_then_the_reason_and_done() -> None:
    with asgi(says("hello world")) as client:
        response = client.chat(stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("data: [DONE]\n\n")
    choices = [frame["choices"][0] for frame in frames(response)]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in choice["delta"] for choice in choices[1:])
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["stop"]
    assert choices[-1] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert streamed_text(response) == "hello world"
    assert {frame["object"] for frame in frames(response)} == {"chat.completion.chunk"}
    assert len({frame["id"] for frame in frames(response)}) == 1


def test_the_usage_chunk_comes_last_with_no_choices_and_only_when_asked() -> None:
    with asgi(says("hello")) as client:
        plain = frames(client.chat(stream=True))
        asked = frames(client.chat(stream=True, stream_options={"include_usage": True}))
    assert all("usage" not in frame for frame in plain)
    assert all(frame["usage"] is None for frame in asked[:-1])
    assert asked[-1]["choices"] == []
    assert asked[-1]["usage"]["completion_tokens"] == len(says("hello").tokens)


@pytest.mark.parametrize("text", ["🙂 and 日本語", "naïve", 'tab\tquote" \\ \n\n data: [DONE]'])
def test_joined_deltas_equal_the_unstreamed_answer(text: str) -> None:
    with asgi(says(text)) as client:
        whole = client.chat().json()["choices"][0]["message"]["content"]
        assert streamed_text(client.chat(stream=True)) == whole == text


def test_an_answer_without_text_still_has_a_role_and_a_reason() -> None:
    with asgi(Script()) as client:
        choices = [frame["choices"][0] for frame in frames(client.chat(stream=True))]
        assert client.chat().json()["choices"][0]["message"]["content"] == ""
    assert [c["delta"] for c in choices] == [{"role": "assistant", "content": ""}, {}]
    assert choices[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_across_tokens_is_cut_and_its_beginning_never_sent(stream: bool) -> None:
    with asgi(says("ABCDEFGHIJKLMNOP")) as client:
        response = client.chat(stop=["DEFGHIJ"], stream=stream)
    if stream:
        assert streamed_text(response) == "ABC"
    else:
        choice = response.json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("ABC", "stop")


def test_a_near_miss_of_a_stop_string_is_answered_in_full() -> None:
    with asgi(says("ABCDEFGHIXYZ")) as client:
        assert streamed_text(client.chat(stop="DEFGHIJ", stream=True)) == "ABCDEFGHIXYZ"


def test_sixty_four_stop_strings_are_accepted_and_sixty_five_refused() -> None:
    with asgi(says("ok")) as client:
        assert client.chat(stop=[f"<{i}>" for i in range(64)]).status_code == 200
        error = error_of(client.chat(stop=[f"<{i}>" for i in range(65)]), 400)
    assert error["param"] == "stop"
    assert "64" in error["message"]


def test_max_tokens_one_gives_one_token_and_length() -> None:
    with asgi(says("ABC")) as client:
        body = client.chat(max_tokens=1).json()
    assert body["choices"][0]["message"]["content"] == "A"
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_minus_one_is_no_limit(name: str) -> None:
    with asgi(says("A")) as client:
        client.chat()
        client.chat(**{name: -1})
        client.complete(max_tokens=-1)
        plain, chat, completion = client.engine.requests
    assert chat.max_tokens == plain.max_tokens
    assert completion.max_tokens > 1000


def test_max_completion_tokens_wins_over_max_tokens() -> None:
    with asgi(says("ABC")) as client:
        client.chat(max_tokens=7, max_completion_tokens=2)
        assert client.engine.requests[0].max_tokens == 2


def test_without_max_tokens_an_answer_may_fill_the_context() -> None:
    with asgi(says("A")) as client:
        client.chat()
        client.chat(max_tokens=10**12)
        for request in client.engine.requests:
            assert len(request.prompt) + request.max_tokens == 4096


def test_the_default_max_tokens_of_the_server_applies() -> None:
    with asgi(says("A"), max_tokens=9) as client:
        client.chat()
        assert client.engine.requests[0].max_tokens == 9


def test_sampling_fields_reach_the_engine_over_the_defaults() -> None:
    with asgi(says("A"), sampling=SamplingParams(temperature=0.6, top_k=20)) as client:
        client.chat()
        client.chat(temperature=0, top_p=0.9, top_k=-1, min_p=0.05, seed=7, ignore_eos=True)
        client.chat(seed=-1)
        first, second, third = client.engine.requests
    assert first.sampling == SamplingParams(temperature=0.6, top_k=20)
    assert second.sampling == SamplingParams(0.0, 0.9, 0, 0.05, 7)
    assert second.ignore_eos
    assert not first.ignore_eos
    assert third.sampling.seed is None


def test_all_text_parts_of_a_message_are_joined() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two three four"}]
    with asgi(says("A")) as client:
        few = client.chat(messages=[{"role": "user", "content": parts[:1]}]).json()["usage"]["prompt_tokens"]
        many = client.chat(messages=[{"role": "user", "content": parts}]).json()["usage"]["prompt_tokens"]
        assert "one two three four" in prompt_of(client)
    assert many > few


def test_a_developer_message_is_a_system_message() -> None:
    with asgi(says("A")) as client:
        client.chat(messages=[{"role": "developer", "content": "be brief"}, *HI])
        assert prompt_of(client).startswith("<|im_start|>system\nbe brief<|im_end|>")


@pytest.mark.parametrize("role", ["system", "developer"])
def test_system_messages_anywhere_suit_a_template_that_takes_one_at_the_start(
    role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_tokenizer()._tokenizer, "chat_template", ONE_SYSTEM)
    first, told = {"role": "system", "content": "Be kind."}, {"role": role, "content": "Be brief."}
    said = {"role": "assistant", "content": "ho"}
    with asgi(says("A")) as client:
        for messages in (
            [first, told, *HI],
            [first, *HI, said, told, *HI],
            [*HI, said, told],
            [told, said, first],
        ):
            assert client.chat(messages=messages).status_code == 200, messages
            assert "Be brief." in prompt_of(client)


def test_null_content_beside_tool_calls_is_empty_text() -> None:
    with asgi(says("A")) as client:
        assert client.chat(messages=call("{}", content=None)).status_code == 200
        assert client.chat(messages=call("{}")).status_code == 200


@pytest.mark.parametrize("arguments", ['{"city": "Oslo", "none": null}', {"city": "Oslo", "none": None}])
def test_replayed_arguments_are_rendered_as_an_object(arguments: Any) -> None:
    with asgi(says("A")) as client:
        assert client.chat(messages=call(arguments)).status_code == 200
        prompt = prompt_of(client)
    assert "<parameter=city>\nOslo\n</parameter>" in prompt
    assert "<parameter=none>\nnull\n</parameter>" in prompt
    assert "<tool_response>\n42\n</tool_response>" in prompt


@pytest.mark.parametrize("arguments", ['{"x":1', "[1]", '"text"', "NaN", '{"x": NaN}', '{"x": "\\ud83d"}', 5])
def test_malformed_replayed_arguments_are_a_clear_400(arguments: Any) -> None:
    with asgi(says("A")) as client:
        error = error_of(client.chat(messages=call(arguments)), 400)
        assert not client.engine.requests
    assert error["param"] == "messages[1].tool_calls[0].function.arguments"


def test_tools_reach_the_template_as_they_came_unless_tool_choice_is_none() -> None:
    tool = {"type": "function", "function": {"name": "look_up", "strict": False, "parameters": {"x": None}}}
    with asgi(says("A")) as client:
        client.chat(tools=[tool])
        assert json.dumps(tool) in prompt_of(client)
        client.chat(tools=[tool], tool_choice="none")
        assert "look_up" not in prompt_of(client)


def test_chat_template_kwargs_are_merged_over_the_defaults() -> None:
    with asgi(says("A")) as client:
        client.chat()
        assert prompt_of(client).endswith("<think>\n\n</think>\n\n")
        client.chat(chat_template_kwargs={"enable_thinking": True})
        assert prompt_of(client).endswith("<think>\n")


def test_no_argument_of_the_template_itself_comes_from_a_client() -> None:
    own = set(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters) - {"self", "kwargs"}
    assert own <= RESERVED_TEMPLATE_KWARGS


def test_chat_template_kwargs_cannot_replace_the_template() -> None:
    with asgi(says("A")) as client:
        error = error_of(client.chat(chat_template_kwargs={"chat_template": "{{ 1 }}"}), 400)
    assert error["param"] == "chat_template_kwargs"


def test_unknown_fields_are_ignored_everywhere() -> None:
    message = {"role": "user", "content": "hi", "cache_control": {"type": "ephemeral"}, "refusal": None}
    with asgi(says("A")) as client:
        response = client.chat(messages=[message], store=True, reasoning_effort="low", user="x", metadata={})
    assert response.status_code == 200


def test_reasoning_of_past_turns_goes_to_the_template() -> None:
    seen: list[dict[str, Any]] = []
    with asgi(says("A")) as client:
        tokenizer = client.app.state.api.tokenizer

        class Recording:
            def __len__(self) -> int:
                return len(tokenizer)

            def __getattr__(self, name: str) -> Any:
                return getattr(tokenizer, name)

            def apply_chat_template(self, messages: list[dict[str, Any]], **kwargs: Any) -> Any:
                seen.extend(messages)
                return tokenizer.apply_chat_template(messages, **kwargs)

        client.app.state.api.tokenizer = Recording()
        client.chat(messages=[*HI, {"role": "assistant", "content": "a", "reasoning_content": "why"}, *HI])
    assert seen[1] == {"role": "assistant", "content": "a", "reasoning_content": "why"}


def test_thinking_text_is_left_in_the_content() -> None:
    with asgi(says("because</think>answer")) as client:
        assert client.chat().json()["choices"][0]["message"]["content"] == "because</think>answer"


def test_a_prompt_that_does_not_fit_is_refused_before_the_queue_in_the_known_wording() -> None:
    with asgi(says("A"), ctx_size=64) as client:
        error = error_of(client.chat(messages=[{"role": "user", "content": "word " * 200}]), 400)
        assert not client.engine.requests
    assert error["code"] == "context_length_exceeded"
    assert error["n_ctx"] == 64
    assert error["n_prompt_tokens"] > 200
    assert error["message"] == (
        "context_length_exceeded: prompt is too long. This model's maximum context length is 64 tokens; "
        f"the request ({error['n_prompt_tokens']} tokens) exceeds the available context size"
    )


def test_a_prompt_that_leaves_no_room_for_an_answer_is_refused() -> None:
    with asgi(says("A")) as client:
        client.chat()
        size = len(client.engine.requests[0].prompt)
        client.engine.ctx_size = size
        assert error_of(client.chat(), 400)["code"] == "context_length_exceeded"
        client.engine.ctx_size = size + 1
        assert client.chat().status_code == 200
        assert client.engine.requests[-1].max_tokens == 1
