"""Responses: items in, items out, whole and as events; all through the real types and client of OpenAI."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from backburner.api.responses.format import ResponsesFormat
from backburner.api.responses.thoughts import pack_thoughts, unpack_thoughts
from backburner.engine.request import GenerationRequest, Grammar
from backburner.errors import ContextExceeded, LinkClosed
from tests.api_support import MODEL, AsgiClient, asgi, error_of, listening
from tests.processes import serve
from tests.scripted_engine import Script, says, tiny_tokenizer, tokens_of

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
# As Codex sends them.
MIXED = [
    {"type": "web_search", "external_web_access": False},
    {
        "type": "custom",
        "name": "patch",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"},
    },
    WEATHER,
    {"type": "local_shell"},
]
ARGUMENTS = "<function=get_weather>\n<parameter=city>\nBonn\n</parameter>\n</function>"
CALL_TEXT = f"I look.\n\n<tool_call>\n{ARGUMENTS}\n</tool_call>"
TWO_CALLS = CALL_TEXT + CALL_TEXT.removeprefix("I look.\n").replace("Bonn", "Köln 🙂")
THOUGHT = "Hm, a greeting.\n</think>\n\nHello 🙂"
THINKS = {"reasoning": {"effort": "medium"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def respond(client: AsgiClient, given: Any = "hi", **fields: Any) -> httpx.Response:
    return client.post("/v1/responses", {"input": given, **fields})


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """A stream's events, each of which has its own name, its number, and the shape of OpenAI's type."""
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(found)
        EVENT.validate_python(event)
        found.append(event)
    return found


def types(found: list[dict[str, Any]]) -> list[str]:
    """The kinds of events; repeated deltas count as one."""
    kinds = [event["type"].removeprefix("response.") for event in found]
    return [kind for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1] or "delta" not in kind]


def prompt_of(client: AsgiClient) -> str:
    text: str = tiny_tokenizer().decode(list(client.engine.requests[-1].prompt))
    return text


def without_ids(response: dict[str, Any]) -> dict[str, Any]:
    """What does not differ from one answer to the next."""
    kept = {k: v for k, v in response.items() if k not in ("id", "created_at", "completed_at")}
    kept["output"] = [
        {k: v for k, v in item.items() if k not in ("id", "call_id")} for item in kept["output"]
    ]
    return kept


def joined(found: list[dict[str, Any]], kind: str) -> str:
    return "".join(event["delta"] for event in found if event["type"] == f"response.{kind}.delta")


def test_an_answer_has_every_field_of_openais_type() -> None:
    with asgi(says("hello world", cached_tokens=3)) as client:
        answer = respond(client, model=MODEL, metadata={"a": "b"}, store=True, temperature=0.5).json()
        prompt_tokens = len(client.engine.requests[0].prompt)
    Response.model_validate(answer)
    tokens = len(says("hello world").tokens)
    assert answer["id"].startswith("resp_")
    assert answer["object"] == "response"
    assert answer["status"] == "completed"
    assert answer["model"] == MODEL
    assert answer["store"] is False
    assert answer["metadata"] == {"a": "b"}
    assert answer["temperature"] == 0.5
    (item,) = answer["output"]
    assert item.pop("id").startswith("msg_")
    part = {"type": "output_text", "text": "hello world", "annotations": [], "logprobs": []}
    assert item == {"type": "message", "status": "completed", "role": "assistant", "content": [part]}
    assert answer["usage"] == {
        "input_tokens": prompt_tokens,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt_tokens + tokens,
    }


def test_a_stream_of_text_has_openais_events_in_openais_order() -> None:
    with asgi(says("hello 🙂 world")) as client:
        response = respond(client, stream=True)
    found = events(response)
    assert types(found) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert found[2]["item"]["content"] == []
    assert found[3]["part"]["text"] == ""
    assert joined(found, "output_text") == "hello 🙂 world"
    assert "[DONE]" not in response.text
    assert len({e["response"]["id"] for e in found if "response" in e}) == 1
    assert len({e["item_id"] for e in found if "item_id" in e}) == 1


def test_thoughts_are_an_item_of_their_own_and_counted() -> None:
    with asgi(says(THOUGHT)) as client:
        found = events(respond(client, stream=True, **THINKS))
        whole = respond(client, **THINKS).json()
    assert types(found)[2:-1] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]
    thought, message = whole["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "Hm, a greeting."}]
    assert thought["summary"] == []
    assert "encrypted_content" not in thought
    assert message["content"][0]["text"] == "Hello 🙂"
    reasoning_tokens = whole["usage"]["output_tokens_details"]["reasoning_tokens"]
    assert reasoning_tokens == len(tokens_of("Hm, a greeting.\n</think>"))


def test_thoughts_are_counted_as_their_tokens_come_and_not_tokenized_again() -> None:
    # Nobody would tokenize it so.
    tokens = [token for character in THOUGHT[:-1] for token in tokens_of(character)]
    for delay_s in (0, 0.01):
        with asgi(Script(tokens, token_delay_s=delay_s)) as client:
            details = respond(client, **THINKS).json()["usage"]["output_tokens_details"]
        assert details["reasoning_tokens"] == len("Hm, a greeting.\n</think>")


@pytest.mark.parametrize("effort", ["none", "minimal"])
def test_the_lowest_efforts_turn_thinking_off_and_a_summary_is_accepted(effort: str) -> None:
    with asgi(says("hi")) as client:
        answer = respond(client, reasoning={"effort": effort, "summary": "auto"}).json()
        assert prompt_of(client).endswith("</think>\n\n")
        respond(client, reasoning={"effort": "low"})
        assert prompt_of(client).endswith("<think>\n")
    assert answer["reasoning"] == {"effort": effort, "summary": "auto"}


def test_calls_are_items_whose_arguments_are_whole_json() -> None:
    with asgi(says(TWO_CALLS)) as client:
        found = events(respond(client, stream=True, tools=[WEATHER]))
        assert '{"type": "function", "function": {"name": "get_weather"' in prompt_of(client)
    assert types(found)[7:-1] == [
        "output_item.done",
        *(
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
        )
        * 2,
    ]
    message, *calls = found[-1]["response"]["output"]
    assert message["content"][0]["text"] == "I look."
    assert [json.loads(call["arguments"]) for call in calls] == [{"city": "Bonn"}, {"city": "Köln 🙂"}]
    assert len({call["call_id"] for call in calls}) == 2
    assert all(call["id"].startswith("fc_") and call["call_id"].startswith("call_") for call in calls)
    added = [e["item"] for e in found if e["type"] == "response.output_item.added"]
    assert [item.get("arguments") for item in added] == [None, "", ""]


def test_tools_that_are_no_functions_are_left_out_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "backburner.api")
    with asgi(says(CALL_TEXT)) as client:
        answer = respond(client, tools=MIXED).json()
        mixed = prompt_of(client)
        assert "'custom', 'local_shell', 'web_search'" in caplog.text
        caplog.clear()
        assert respond(client, tools=[WEATHER]).json()["tools"] == answer["tools"]
        assert prompt_of(client) == mixed
        assert not caplog.text
        forced = respond(client, tools=MIXED, tool_choice="required")
    assert [item["type"] for item in answer["output"]] == ["message", "function_call"]
    assert [tool["name"] for tool in answer["tools"]] == ["get_weather"]
    assert forced.status_code == 200
    Response.model_validate(answer)


def test_without_parallel_calls_there_is_one() -> None:
    with asgi(says(TWO_CALLS)) as client:
        answer = respond(client, tools=[WEATHER], parallel_tool_calls=False).json()
    assert [item["type"] for item in answer["output"]] == ["message", "function_call"]
    assert answer["parallel_tool_calls"] is False


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
def test_an_answer_is_held_to_a_call_that_is_asked_for(choice: object) -> None:
    with asgi(says(f"<tool_call>\n{ARGUMENTS}\n</tool_call>")) as client:
        answer = respond(client, tools=[WEATHER], tool_choice=choice).json()
        grammar = client.engine.requests[-1].grammar
        assert grammar is not None
        assert "<function=get_weather>" in (grammar.rules or "")
        found = events(respond(client, tools=[WEATHER], tool_choice=choice, stream=True))
    (item,) = answer["output"]
    assert (item["name"], item["arguments"]) == ("get_weather", '{"city": "Bonn"}')
    assert answer["tool_choice"] == choice
    assert without_ids(found[-1]["response"]) == without_ids(answer)


def test_with_tool_choice_none_markup_is_text() -> None:
    with asgi(says(CALL_TEXT)) as client:
        answer = respond(client, tools=[WEATHER], tool_choice="none").json()
        assert "get_weather" not in prompt_of(client)
    assert answer["output"][0]["content"][0]["text"] == CALL_TEXT


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("hello 🙂 world", {}),
        ("", {}),
        (THOUGHT, THINKS),
        ("never closed", THINKS),
        ("never closed", {**THINKS, "stop": " closed"}),
        ("Hm.\n\n" + CALL_TEXT, {**THINKS, "tools": [WEATHER]}),
        ("only thought</think>", THINKS),
        (TWO_CALLS, {"tools": [WEATHER]}),
        (CALL_TEXT + "\n\nand more", {"tools": [WEATHER]}),
        (THOUGHT, {**THINKS, "max_output_tokens": 3}),
        (THOUGHT, {**THINKS, "include": ["reasoning.encrypted_content"]}),
        ("hello 🙂 world", {"max_output_tokens": 2}),
        (THOUGHT, {**THINKS, "top_logprobs": 2}),
    ],
)
def test_a_stream_adds_up_to_the_whole_answer(text: str, fields: dict[str, Any]) -> None:
    with asgi(says(text)) as client:
        whole = respond(client, **fields).json()
        found = events(respond(client, stream=True, **fields))
    last = found[-1]
    Response.model_validate(whole)
    assert last["type"] == f"response.{whole['status']}"
    assert without_ids(last["response"]) == without_ids(whole)
    done = [e["item"] for e in found if e["type"] == "response.output_item.done"]
    assert done == last["response"]["output"]
    indices = [e["output_index"] for e in found if e["type"] == "response.output_item.added"]
    assert indices == list(range(len(done)))
    texts = "".join(part["text"] for item in done if item["type"] == "message" for part in item["content"])
    assert joined(found, "output_text") == texts


def test_an_answer_that_ran_out_of_tokens_is_incomplete_with_its_reason() -> None:
    with asgi(says("hello world")) as client:
        answer = respond(client, max_output_tokens=1).json()
        found = events(respond(client, stream=True, max_output_tokens=1))
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"][-1]["status"] == "incomplete"
    assert answer["usage"]["output_tokens"] == 1
    assert found[-1]["type"] == "response.incomplete"


def test_an_answer_without_text_is_an_empty_message() -> None:
    with asgi(Script()) as client:
        answer = respond(client).json()
        found = events(respond(client, stream=True))
    assert answer["output"][0]["content"][0]["text"] == ""
    assert "output_text.done" in types(found)


def test_a_schema_lies_flat_and_reaches_the_grammar() -> None:
    wanted = {"type": "json_schema", "name": "thing", "schema": SCHEMA, "strict": True}
    with asgi(says('{"a": 1}')) as client:
        answer = respond(client, text={"format": wanted}).json()
        assert client.engine.requests[-1].grammar == Grammar(json.dumps(SCHEMA), None)
        respond(client, text={"format": {"type": "json_object"}}, **THINKS)
        assert client.engine.requests[-1].grammar == Grammar(None, "</think>")
        respond(client, text={"format": {"type": "json_object", "schema": SCHEMA}})
        assert client.engine.requests[-1].grammar == Grammar(json.dumps(SCHEMA), None)
        respond(client, text={"format": {"type": "text"}, "verbosity": "low"})
        assert client.engine.requests[-1].grammar is None
    assert answer["text"] == {"format": wanted}


def test_logprobs_are_of_the_message_and_join_to_its_text() -> None:
    with asgi(says(THOUGHT)) as client:
        found = events(respond(client, stream=True, top_logprobs=2, **THINKS))
        included = respond(client, include=["message.output_text.logprobs"]).json()
    part = found[-1]["response"]["output"][1]["content"][0]
    raw = b"".join(bytes(entry["bytes"]) for entry in part["logprobs"])
    assert raw.decode() == part["text"] == "Hello 🙂"
    assert all(len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])
    (done,) = [e for e in found if e["type"] == "response.output_text.done"]
    assert done["logprobs"] == part["logprobs"]
    assert included["output"][0]["content"][0]["logprobs"][0]["top_logprobs"] == []


def test_logprobs_are_of_each_message_and_not_of_the_call_between_them() -> None:
    with asgi(says(f"I look.\n\n<tool_call>\n{ARGUMENTS}\n</tool_call>\n\nDone 🙂.")) as client:
        fields = {"tools": [WEATHER], "top_logprobs": 1}
        whole = respond(client, **fields).json()
        found = events(respond(client, stream=True, **fields))
    assert [item["type"] for item in whole["output"]] == ["message", "function_call", "message"]
    for item in (whole["output"][0], whole["output"][2]):
        (part,) = item["content"]
        assert b"".join(bytes(entry["bytes"]) for entry in part["logprobs"]).decode() == part["text"]
    assert without_ids(found[-1]["response"]) == without_ids(whole)


def test_a_thought_that_is_the_answer_has_its_logprobs() -> None:
    with asgi(says("never closed")) as client:
        answer = respond(client, top_logprobs=1, **THINKS).json()
    part = answer["output"][1]["content"][0]
    assert b"".join(bytes(entry["bytes"]) for entry in part["logprobs"]).decode() == part["text"]


def rendered(client: AsgiClient, given: Any, **fields: Any) -> list[dict[str, Any]]:
    """The messages that the template got."""
    seen: list[dict[str, Any]] = []
    tokenizer = client.app.state.api.tokenizer

    class Spy:
        chat_template = tokenizer.chat_template

        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer, name)

        def __len__(self) -> int:
            return len(tokenizer)

        def apply_chat_template(self, messages: list[dict[str, Any]], **kwargs: Any) -> Any:
            seen[:] = messages
            return tokenizer.apply_chat_template(messages, **kwargs)

    client.app.state.api.tokenizer = Spy()
    try:
        response = respond(client, given, **fields)
    finally:
        client.app.state.api.tokenizer = tokenizer
    assert response.status_code == 200, response.text
    return seen


def test_the_items_of_a_turn_become_one_message_of_the_assistant() -> None:
    given = [
        {"role": "developer",
         "content": [{"type": "input_text", "text": "Be "}, {"type": "input_text", "text": "kind."}]},
        {"role": "user", "content": "Weather?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Bonn."}]},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
         "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "get_weather",
         "arguments": '{"city": "Bonn"}'},
        {"type": "function_call", "call_id": "c2", "name": "get_weather", "arguments": ""},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "sun"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Done."}]},
        {"role": "assistant", "content": "Rain."},
        {"role": "user", "content": "Thanks"},
    ]  # fmt: skip
    with asgi(says("hi")) as client:
        messages = rendered(client, given, instructions="You help.")
    calls = messages[2].pop("tool_calls")
    assert messages == [
        {"role": "system", "content": "You help.\n\nBe kind."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "Bonn."},
        {"role": "tool", "content": "rain", "tool_call_id": "c1"},
        {"role": "tool", "content": "sun", "tool_call_id": "c2"},
        {"role": "assistant", "content": "Rain.", "reasoning_content": "Done."},
        {"role": "user", "content": "Thanks"},
    ]
    assert [(call["id"], call["function"]["arguments"]) for call in calls] == [
        ("c1", {"city": "Bonn"}),
        ("c2", {}),
    ]


@pytest.mark.parametrize("keeps_content", [True, False])
def test_an_output_can_be_sent_back_as_it_came(keeps_content: bool) -> None:
    """Codex drops the content of thoughts and sends back encrypted_content alone."""
    text = f"Hm.\n</think>\n\n{CALL_TEXT}"
    with asgi(says(text)) as client:
        output = respond(client, tools=[WEATHER], include=["reasoning.encrypted_content"], **THINKS).json()[
            "output"
        ]
        if not keeps_content:
            del output[0]["content"]
        result = {"type": "function_call_output", "call_id": output[-1]["call_id"], "output": "rain"}
        messages = rendered(client, [{"role": "user", "content": "hi"}, *output, result], tools=[WEATHER])
    assert messages[1]["reasoning_content"] == "Hm."
    assert messages[1]["content"] == "I look."
    assert messages[1]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": {"city": "Bonn"}}


def test_packed_thoughts_of_others_are_left_out() -> None:
    assert unpack_thoughts(pack_thoughts("täg 🙂\x00")) == "täg 🙂\x00"
    for packed in (None, "", "gAAAAB", pack_thoughts("abc")[:-1], pack_thoughts("") + "%"):
        assert unpack_thoughts(packed) is None


def test_messages_in_a_row_stay_apart_and_what_is_said_behind_a_call_stays_with_it() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    given = [
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "b"},
        call,
        {"role": "assistant", "content": "c"},
        {"type": "function_call_output", "call_id": "c", "output": "r"},
    ]
    with asgi(says("hi")) as client:
        messages = rendered(client, given)
    assert [(m["role"], m["content"], "tool_calls" in m) for m in messages] == [
        ("assistant", "a", False),
        ("assistant", "bc", True),
        ("tool", "r", False),
    ]


def test_a_later_message_of_the_developer_stays_in_its_place_as_a_users() -> None:
    given = [{"role": "user", "content": "a"}, {"role": "developer", "content": "Be brief."}]
    with asgi(says("hi")) as client:
        messages = rendered(client, given)
    assert messages == [
        {"role": "user", "content": "a"},
        {"role": "user", "content": "<system-reminder>\nBe brief.\n</system-reminder>"},
    ]


USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [3]}, "input[0]"),
        ({"input": [{"type": None, "role": "robot"}]}, "input[0].role"),
        ({"input": [USER, {"type": "web_search_call"}]}, "input[1].type"),
        ({"input": [{"type": ["message"]}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": 3}]}, "input[0].content"),
        (
            {"input": [USER, {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[1].content",
        ),
        ({"input": [{"type": "function_call", "call_id": "c", "arguments": "{}"}]}, "input[0].name"),
        ({"input": [{"type": "function_call", "call_id": "", "name": "f"}]}, "input[0].call_id"),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"x"'}]},
            "input[0].arguments",
        ),
        (
            {"input": [USER, {"type": "function_call_output", "call_id": "c", "output": ""}]},
            "input[1].call_id",
        ),
        ({"input": [{"type": "reasoning", "summary": "x"}]}, "input[0].summary"),
        ({"instructions": 3}, "instructions"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [{"type": "web_search"}, {"type": "custom", "name": "patch"}]}, "tools"),
        ({"tools": [WEATHER, {"type": "function"}]}, "tools[1]"),
        ({"tools": [WEATHER, {"name": "patch"}]}, "tools[1]"),
        ({"tools": [WEATHER, {"type": ["custom"]}]}, "tools[1]"),
        ({"tools": MIXED, "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": MIXED, "tool_choice": {"type": "custom", "name": "patch"}}, "tool_choice"),
        ({"tools": MIXED, "tool_choice": {"type": "function", "name": "patch"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "schema": {"type": "nothing"}}}}, "text.format.schema"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"temperature": 3.0}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"n": 2}, "n"),
        ({"input": "word " * 5000}, "input"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_field_is_a_400_that_names_it(fields: dict[str, Any], param: str, stream: bool) -> None:
    with asgi(says("hi")) as client:
        error = error_of(client.post("/v1/responses", {"input": "hi", "stream": stream, **fields}), 400)
        assert client.engine.requests == []
    assert error["param"] == param
    assert "response_format" not in error["message"]


def test_what_needs_storage_is_refused_in_words_that_help() -> None:
    with asgi(says("hi")) as client:
        error = error_of(respond(client, previous_response_id="resp_1"), 400)
        assert "this server is stateless: send the whole input" in error["message"]
        error = error_of(respond(client, tools=[{"type": "web_search"}]), 400)
        assert "'web_search'" in error["message"]


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_no_response_is_stored(method: str) -> None:
    with asgi(says("hi")) as client:
        response_id = respond(client).json()["id"]
        error = error_of(client.request(method, f"/v1/responses/{response_id}"), 404)
    assert "does not store responses" in error["message"]


def test_an_unknown_model_is_a_404_and_fields_of_no_concern_are_ignored() -> None:
    with asgi(says("hi")) as client:
        assert error_of(respond(client, model="other"), 404)["code"] == "model_not_found"
        fields = {"user": "u", "service_tier": "auto", "prompt_cache_key": "k", "safety_identifier": "s"}
        nulls = {
            "previous_response_id": None,
            "text": None,
            "reasoning": None,
            "metadata": None,
            "tools": None,
        }
        assert respond(client, truncation="disabled", **fields, **nulls).status_code == 200


def test_the_wait_is_filled_with_events_from_queueing_on() -> None:
    script = says("AB", prefill=[(256, 512)], prefill_delay_s=0.15, token_delay_s=0.15)
    with asgi(script, keep_alive_s=0.05) as client:
        response = respond(client, stream=True)
    found = events(response)  # which has no comments in it, or it would not have been read
    kinds = [event["type"] for event in found]
    first = kinds.index("response.output_item.added")
    assert kinds[0] == "response.created"
    assert set(kinds[1:first]) == {"response.in_progress"}
    assert first >= 4
    deltas = [i for i, kind in enumerate(kinds) if kind == "response.output_text.delta"]
    assert "response.in_progress" in kinds[deltas[0] : deltas[1]]
    assert kinds[-1] == "response.completed"


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (LinkClosed("the worker is gone"), "server_error"),
        (ContextExceeded("full"), "context_length_exceeded"),
    ],
)
def test_a_failure_in_mid_stream_is_response_failed_and_nothing_after_it(fault: Any, code: str) -> None:
    with asgi(says("ABCDEF", fault_at=3, fault=fault)) as client:
        response = respond(client, stream=True)
    *_, last = (json.loads(b.split("data: ")[1]) for b in response.text.removesuffix("\n\n").split("\n\n"))
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"] == {
        "code": code,
        "message": str(fault),
        "param": None,
        "type": fault.code,
    }
    assert last["response"]["output"][0]["content"][0]["text"] == "ABC"
    assert last["response"]["output"][0]["status"] == "incomplete"
    assert "response.completed" not in response.text
    assert "response.output_item.done" not in response.text


def test_a_defect_in_mid_stream_is_response_failed_without_details(monkeypatch: pytest.MonkeyPatch) -> None:
    def defect(*_: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(ResponsesFormat, "ending", defect)
    with asgi(says("ABC")) as client:
        response = respond(client, stream=True)
    assert events(response)[-1]["response"]["error"]["type"] == "internal_error"
    assert "secret" not in response.text


@pytest.mark.parametrize("stream", [False, True])
def test_a_dead_engine_is_an_error_before_any_event(stream: bool) -> None:
    with asgi(says("ABC")) as client:
        client.engine.alive = False
        error_of(respond(client, stream=stream), 503)


def test_a_failure_of_a_whole_answer_is_an_error_and_no_response() -> None:
    with asgi(says("ABC", fault_at=2, fault=LinkClosed("gone"))) as client:
        assert error_of(respond(client), 503)["code"] == "link_closed"


def scripted(request: GenerationRequest) -> Script:
    """max_output_tokens chooses the behaviour, so that one server does for all tests of the real client."""
    match request.max_tokens:
        case 401:
            return says("ABC", fault_at=2, fault=LinkClosed("the worker is gone"))
        case 402:
            return says(CALL_TEXT)
        case 403:
            return says('{"a": 7}')
        case 3:
            return says("one two three four five six")
    return says("hello 🙂 world")


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with listening(scripted) as (url, _):
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=20)


def test_the_real_client_reads_an_answer_and_a_stream(client: openai.OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input="hi", instructions="Be kind.")
    assert answer.output_text == "hello 🙂 world"
    assert answer.status == "completed"
    with client.responses.stream(model=MODEL, input="hi", instructions="Be kind.") as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == answer.output_text
    assert final.usage.total_tokens == answer.usage.total_tokens


def test_the_real_client_assembles_calls(client: openai.OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="hi", tools=[WEATHER], max_output_tokens=402) as stream:
        final = stream.get_final_response()
    message, call = final.output
    assert message.content[0].text == "I look."
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Bonn"})


def test_the_real_client_parses_a_schema(client: openai.OpenAI) -> None:
    class Thing(BaseModel):
        a: int

    answer = client.responses.parse(model=MODEL, input="hi", text_format=Thing, max_output_tokens=403)
    assert answer.output_parsed == Thing(a=7)


def test_the_real_client_is_told_of_failures_and_ends(client: openai.OpenAI) -> None:
    *_, failed = client.responses.create(model=MODEL, input="hi", max_output_tokens=401, stream=True)
    assert failed.type == "response.failed"
    assert failed.response.error.message == "the worker is gone"
    *_, cut = client.responses.create(model=MODEL, input="hi", max_output_tokens=3, stream=True)
    assert cut.type == "response.incomplete"
    assert cut.response.incomplete_details.reason == "max_output_tokens"
    with pytest.raises(openai.BadRequestError, match="stateless"):
        client.responses.create(model=MODEL, input="hi", previous_response_id="resp_1", stream=True)
    with pytest.raises(openai.NotFoundError, match="does not store"):
        client.responses.retrieve("resp_1")


def tool_loop(client: openai.OpenAI, ask: Callable[..., Any]) -> tuple[dict[str, Any], str]:
    """A question that needs a tool: the call's arguments, and the answer from its result."""
    given: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = ask(client, input=given)
    (call,) = [item for item in first.output if item.type == "function_call"]
    given += [item.model_dump(exclude_none=True) for item in first.output]
    given.append({"type": "function_call_output", "call_id": call.call_id, "output": "rainy, 12 degrees"})
    return json.loads(call.arguments), ask(client, input=given).output_text


def create(client: openai.OpenAI, **fields: Any) -> Any:
    return client.responses.create(model="tiny", tools=[WEATHER], max_output_tokens=100, **fields)


def stream(client: openai.OpenAI, **fields: Any) -> Any:
    with client.responses.stream(model="tiny", tools=[WEATHER], max_output_tokens=100, **fields) as running:
        return running.get_final_response()


def test_a_tool_loop_with_the_embedded_model_whole_and_streamed() -> None:
    with serve("--device", "none") as server:
        arguments, answer = tool_loop(server.client(), create)
        assert arguments == {"city": "Paris"}
        assert "rainy, 12 degrees" in answer
        assert tool_loop(server.client(), stream) == (arguments, answer)
