"""Public faults of other servers, by their numbers in facts/clients.md: what must hold instead.

Those of prefix re-use and of batching are not here; `test_case_list` says where each is.
"""

import itertools
import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from backburner.engine.request import GenerationRequest
from backburner.errors import LinkClosed
from tests.api_support import (
    HI,
    AsgiClient,
    asgi,
    asgi_tiny,
    assembled,
    both_ways,
    error_of,
    eventually,
    frames,
    listening,
    streamed_text,
)
from tests.scripted_engine import Script, bytes_of, says, tiny_tokenizer, tokens_of
from tests.test_api_live import LONG, idle, open_request

FORECAST = {
    "type": "function",
    "function": {
        "name": "forecast",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "code": {"type": "string"},
            },
        },
    },
}
TOOLS = [FORECAST]
THINKS = {"chat_template_kwargs": {"enable_thinking": True}}


def call_text(name: str = "forecast", **values: str) -> str:
    parameters = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def replayed(arguments: Any, content: Any = "") -> list[dict[str, Any]]:
    function = {"name": "forecast", "arguments": arguments}
    call = {"id": "c1", "type": "function", "function": function}
    return [
        *HI,
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]


def arguments_of(choice: dict[str, Any]) -> list[dict[str, Any]]:
    return [json.loads(call["function"]["arguments"]) for call in choice["message"]["tool_calls"]]


def prompt_of(client: AsgiClient) -> str:
    return str(tiny_tokenizer().decode(list(client.engine.requests[-1].prompt)))


@pytest.fixture(scope="module")
def tiny() -> Iterator[AsgiClient]:
    with asgi_tiny() as client:
        yield client


@pytest.mark.parametrize("text", ["🙂", "日本語", "a🙂b👩\u200d👧"])
def test_02_a_character_of_several_tokens_arrives_whole(text: str) -> None:
    assert len(tokens_of(text)) > len(text)
    with asgi(says(text, token_delay_s=0.002)) as client:
        assert both_ways(client)["message"]["content"] == text
        assert "\ufffd" not in client.chat(stream=True).text


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_02_a_character_that_is_cut_by_max_tokens_leaves_nothing(kept: int) -> None:
    with asgi(says("A🙂")) as client:
        assert both_ways(client, max_tokens=1 + kept)["message"]["content"] == "A"


def test_04_the_beginning_of_a_stop_string_is_withheld_and_a_near_miss_is_released() -> None:
    with asgi(says("ABCDEFGHIJKLMNOPQRSTUVWXYZ")) as client:
        hit = both_ways(client, stop="DEFGHIJ")
        near = both_ways(client, stop="DEFGHIX")
    assert (hit["message"]["content"], hit["finish_reason"]) == ("ABC", "stop")
    assert near["message"]["content"] == "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@pytest.mark.parametrize("cut", range(1, 12))
def test_04_where_tokens_cut_a_stop_string_does_not_matter(cut: int) -> None:
    text = "one 🙂 STOP two"
    script = Script((*tokens_of(text[:cut]), *tokens_of(text[cut:])))
    with asgi(script) as client:
        assert both_ways(client, stop=["🙂 STOP", "nothing"])["message"]["content"] == "one "


def test_05_many_stop_strings_are_accepted_too_many_and_numbers_are_400() -> None:
    with asgi(says("a<63>b")) as client:
        assert both_ways(client, stop=[f"<{i}>" for i in range(64)])["message"]["content"] == "a"
        assert "64" in error_of(client.chat(stop=["x"] * 65), 400)["message"]
        for bad in (5, [5], ["a", 5], {"a": 1}):
            assert error_of(client.chat(stop=bad), 400)["param"] == "stop"


def test_06_one_token_ends_with_length_and_none_or_fewer_is_400() -> None:
    with asgi(says("ABC")) as client:
        choice = both_ways(client, max_tokens=1)
        assert (choice["message"]["content"], choice["finish_reason"]) == ("A", "length")
        assert client.chat(max_tokens=1).json()["usage"]["completion_tokens"] == 1
        for name in ("max_tokens", "max_completion_tokens"):
            for bad in (0, -2):
                assert error_of(client.chat(**{name: bad}), 400)["param"] == name


def test_08_an_answer_inside_a_thought_that_is_never_closed_is_content() -> None:
    with asgi(says("The answer is 4.")) as client:
        ended = both_ways(client, **THINKS)
        cut = both_ways(client, max_tokens=2, **THINKS)
    assert ended["message"]["content"] == "The answer is 4."
    assert ended["finish_reason"] == "stop"
    assert cut["message"]["content"] == ""
    assert cut["message"]["reasoning_content"]
    assert cut["finish_reason"] == "length"


def test_08_a_stop_string_in_a_thought_leaves_it_a_thought() -> None:
    with asgi(says("First I count.\n\nThen I add.")) as client:
        choice = both_ways(client, stop=["\n\n"], **THINKS)
    assert choice["message"] == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "First I count.",
    }
    assert choice["finish_reason"] == "stop"


def test_08_a_call_inside_a_thought_that_is_never_closed_is_made() -> None:
    with asgi(says("I look.\n\n" + call_text(city="Oslo"))) as client:
        choice = both_ways(client, tools=TOOLS, **THINKS)
    assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("I look.", None)
    assert arguments_of(choice) == [{"city": "Oslo"}]
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("thinking", [False, True])
def test_10_a_schema_holds_with_thinking_on_and_off(tiny: AsgiClient, thinking: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["n"],
        "additionalProperties": False,
    }
    response = tiny.chat(
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        chat_template_kwargs={"enable_thinking": thinking},
        # The model never learned to think: it is made to stop at once.
        logit_bias={str(tokens_of("</think>")[0]): 100} if thinking else {},
        max_tokens=60,
    )
    choice = response.json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert list(json.loads(choice["message"]["content"])) == ["n"]


def test_11_replayed_string_arguments_are_rendered_as_the_object_that_a_template_walks_over() -> None:
    with asgi(says("A")) as client:
        assert client.chat(messages=replayed('{"city": "Oslo", "days": 3}'), tools=TOOLS).status_code == 200
        prompt = prompt_of(client)
    assert "<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n</parameter>" in prompt


def test_12_a_template_that_prints_arguments_gets_the_very_string(monkeypatch: pytest.MonkeyPatch) -> None:
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.name + ' ' + c.function.arguments }}{% endfor %}\n"
        "{% endfor %}"
    )
    monkeypatch.setattr(tiny_tokenizer()._tokenizer, "chat_template", template)
    with asgi(says("A")) as client:
        for arguments in ('{"city":  "Oslo"}', {"city": "Oslo"}):
            assert client.chat(messages=replayed(arguments)).status_code == 200
            wanted = arguments if isinstance(arguments, str) else json.dumps(arguments)
            assert f"forecast {wanted}tool:" in prompt_of(client)


def test_14_two_functions_in_one_block_are_two_calls_of_valid_json() -> None:
    one, two = (call_text(city=c).removeprefix("<tool_call>\n") for c in ("Oslo", "Bergen"))
    with asgi(says("<tool_call>\n" + one.removesuffix("</tool_call>") + two)) as client:
        choice = both_ways(client, tools=TOOLS)
        deltas = [
            d
            for f in frames(client.chat(stream=True, tools=TOOLS))
            for d in f["choices"][0]["delta"].get("tool_calls", ())
        ]
    assert arguments_of(choice) == [{"city": "Oslo"}, {"city": "Bergen"}]
    assert [d["index"] for d in deltas if "id" in d] == [0, 1]
    assert choice["finish_reason"] == "tool_calls"


def pieces_at(text: str, cuts: Sequence[int]) -> Script:
    edges = [0, *cuts, len(text)]
    return Script(pieces=[text[a:b] for a, b in itertools.pairwise(edges)], token_delay_s=0.002)


def test_15_arguments_are_whole_wherever_the_call_is_cut() -> None:
    text = call_text(city='"Os{lo}"', days="3")
    wanted = {"city": '"Os{lo}"', "days": 3}
    cut = iter(range(1, len(text)))
    with asgi(lambda _: pieces_at(text, [next(cut)])) as client:
        for _ in range(1, len(text)):
            choice = assembled(client.chat(stream=True, tools=TOOLS))
            assert arguments_of(choice) == [wanted]
            assert not choice["message"]["content"]
            assert choice["finish_reason"] == "tool_calls"


def test_15_arguments_are_whole_when_every_character_comes_alone() -> None:
    text = call_text(city="Oslo", days="3")
    with asgi(pieces_at(text, range(1, len(text)))) as client:
        assert arguments_of(assembled(client.chat(stream=True, tools=TOOLS))) == [{"city": "Oslo", "days": 3}]


@pytest.mark.parametrize(
    "code", ["    if x:\n", "\n\nx\n", " ", "", "\t'a' \\ \"b\"\n  ", "x = '</parameter>'\n"]
)
def test_17_an_argument_keeps_all_but_the_one_newline_on_each_side(code: str) -> None:
    with asgi(says(call_text(code=code))) as client:
        assert arguments_of(both_ways(client, tools=TOOLS)) == [{"code": code}]


@pytest.mark.parametrize("arguments", ['{"x":1', "[1]", "nonsense", "NaN", 5, '{"x": 1e999}', "{'x': 1}"])
def test_19_malformed_replayed_arguments_are_a_clear_400(arguments: Any) -> None:
    with asgi(says("A")) as client:
        error = error_of(client.chat(messages=replayed(arguments)), 400)
        assert not client.engine.requests
    assert error["param"] == "messages[1].tool_calls[0].function.arguments"


def test_21_null_content_beside_calls_is_the_empty_text() -> None:
    with asgi(says("A")) as client:
        prompts = []
        for content in (None, ""):
            assert client.chat(messages=replayed("{}", content)).status_code == 200
            prompts.append(prompt_of(client))
    assert prompts[0] == prompts[1]
    assert "None" not in prompts[0]


def test_22_all_text_parts_are_read() -> None:
    parts = [{"type": "text", "text": t} for t in ("first part ", "second part ", "third part")]
    with asgi(says("A")) as client:
        sizes = []
        for count in (1, 2, 3):
            message = {"role": "user", "content": parts[:count]}
            sizes.append(client.chat(messages=[message]).json()["usage"]["prompt_tokens"])
        assert "first part second part third part" in prompt_of(client)
    assert sizes == sorted(set(sizes))


def test_24_plain_and_penalised_requests_at_once_are_all_answered(tiny: AsgiClient) -> None:
    bodies: list[dict[str, Any]] = [
        {},
        {"frequency_penalty": 1.0, "repetition_penalty": 1.2},
        {"temperature": 1.0, "seed": 3, "logit_bias": {"5": -100}},
        {"stream": True, "presence_penalty": 1.0},
    ]
    with ThreadPoolExecutor(4) as pool:
        responses = list(pool.map(lambda body: tiny.chat(max_tokens=8, **body), bodies))
    assert [r.status_code for r in responses] == [200] * 4
    assert responses[3].text.endswith("data: [DONE]\n\n")
    assert tiny.get("/health").status_code == 200


def test_25_a_dead_engine_is_a_503_in_health_and_for_all_that_wait() -> None:
    release = threading.Event()

    def script(_: GenerationRequest) -> Script:
        assert release.wait(10)
        return Script(hang_at=0)

    with listening(script, keep_alive_s=0.05) as (url, engine):
        body = {"messages": HI}
        with ThreadPoolExecutor(3) as pool:
            asked = [
                pool.submit(httpx.post, f"{url}/v1/chat/completions", json=body, timeout=10) for _ in range(3)
            ]
            assert eventually(lambda: len(engine.requests) == 3)
            engine.alive = False
            for response in (future.result() for future in asked):
                assert error_of(response, 503)["code"] == "engine_unavailable"
        assert httpx.get(f"{url}/health").status_code == 503
        assert httpx.post(f"{url}/v1/chat/completions", json=body).status_code == 503
        release.set()


def test_25_a_defect_of_the_runner_fails_its_request_and_the_engine_serves_the_next(
    tiny: AsgiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("injected")

    monkeypatch.setattr(tiny.engine._runner, "prefill", fail)
    assert "injected" not in error_of(tiny.chat(), 500)["message"]
    monkeypatch.undo()
    assert tiny.get("/health").status_code == 200
    assert tiny.chat(max_tokens=2).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_27_a_client_that_leaves_frees_the_engine_within_two_seconds(stream: bool, phase: str) -> None:
    prefill = [(n, 1000) for n in range(1000)] if phase == "prefill" else []
    script = Script(LONG.tokens, prefill=prefill, prefill_delay_s=0.02, token_delay_s=0.01)
    with listening(script) as (url, engine):
        sock = open_request(url, {"stream": stream})
        assert eventually(lambda: engine.running and (phase == "prefill" or engine.emitted_tokens > 3))
        sock.close()
        assert eventually(idle(engine), within_s=2)
        assert not engine.completed


def test_29_a_reader_that_takes_nothing_is_cancelled_and_others_are_answered_meanwhile() -> None:
    flood = Script(pieces=["x" * 65536] * 2000, token_delay_s=0.001)

    def script(request: GenerationRequest) -> Script:
        return says("ok") if request.max_tokens == 5 else flood

    with listening(script, write_stall_s=0.3) as (url, engine):
        engine.ctx_size = 10**6
        stalled = open_request(url, {"stream": True}, receive_buffer_bytes=4096)
        other = httpx.post(f"{url}/v1/chat/completions", json={"messages": HI, "max_tokens": 5}, timeout=20)
        assert other.json()["choices"][0]["message"]["content"] == "ok"
        assert engine.handles[0].cancelled.is_set()
        assert engine.requests[0].request_id not in engine.completed
        stalled.close()


def test_30_a_fault_in_mid_stream_is_an_error_frame_and_no_made_up_end() -> None:
    with asgi(says("ABCDEF", fault_at=3, fault=LinkClosed("the worker is gone"))) as client:
        response = client.chat(stream=True)
    *before, last = frames(response)
    assert "".join(f["choices"][0]["delta"].get("content", "") for f in before) == "ABC"
    assert last["error"]["message"] == "the worker is gone"
    assert all(f["choices"][0]["finish_reason"] is None for f in before)
    assert "[DONE]" not in response.text


@pytest.mark.parametrize("penalty", [-1, 0, 1e300])
def test_39_a_penalty_out_of_range_is_a_400_and_the_server_lives(tiny: AsgiClient, penalty: float) -> None:
    assert error_of(tiny.chat(repetition_penalty=penalty), 400)["param"] == "repetition_penalty"
    assert tiny.chat(max_tokens=1, repetition_penalty=1.1).status_code == 200


@pytest.mark.parametrize("text", ["plain words", "naïve 🙂 日本", "ends cut 🙂"])
@pytest.mark.parametrize("top", [0, 3])
def test_41_each_token_has_its_bytes_and_sorted_alternatives_and_they_join_to_the_content(
    text: str, top: int
) -> None:
    with asgi(says(text)) as client:
        choice = both_ways(client, logprobs=True, top_logprobs=top)
    entries = choice["logprobs"]["content"]
    assert b"".join(bytes(e["bytes"]) for e in entries).decode() == choice["message"]["content"] == text
    assert [bytes(e["bytes"]) for e in entries] == [bytes_of(t) for t in tokens_of(text)]
    for entry in entries:
        assert entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == top
        logprobs = [t["logprob"] for t in entry["top_logprobs"]]
        assert logprobs == sorted(logprobs, reverse=True)
        if top:
            assert entry["top_logprobs"][0]["bytes"] == entry["bytes"]


def test_41_the_real_model_reports_what_it_says(tiny: AsgiClient) -> None:
    fields = {"logprobs": True, "top_logprobs": 2, "max_tokens": 12}
    choice = both_ways(tiny, **fields)
    entries = choice["logprobs"]["content"]
    assert (
        b"".join(bytes(e["bytes"]) for e in entries).decode(errors="ignore") == choice["message"]["content"]
    )
    assert all(e["top_logprobs"][0]["token"] == e["token"] for e in entries), "greedy"


@pytest.mark.parametrize("stream", [False, True])
def test_42_half_a_surrogate_pair_is_a_400_before_a_stream_starts_and_nul_is_text(stream: bool) -> None:
    head = b'{"stream":' + (b"true" if stream else b"false") + b',"messages":[{"role":"user","content":"'
    with asgi(says("ok")) as client:
        response = client.raw(head + b'\\ud83d"}]}')
        assert error_of(response, 400)["code"] == "invalid_json"
        assert response.headers["content-type"] == "application/json"
        assert not client.engine.requests
        assert client.raw(head + b'a\\u0000b"}]}').status_code == 200
        assert client.raw(head + b'\\ud83d\\ude42"}]}').status_code == 200
        assert "🙂" in prompt_of(client)


@pytest.mark.parametrize("depth", [1000, 3000, 100_000])
def test_43_tools_nested_absurdly_deep_are_a_400_and_the_server_lives(depth: int) -> None:
    deep = '{"a":' * depth + "1" + "}" * depth
    tool = '{"type":"function","function":{"name":"f","parameters":' + deep + "}}"
    with asgi(says("ok")) as client:
        for tools in (f"[{tool}]", "[" * depth + "]" * depth, deep):
            body = '{"messages":[{"role":"user","content":"hi"}],"tools":' + tools + "}"
            error_of(client.raw(body.encode()), 400)
        assert client.chat().status_code == 200


@pytest.mark.parametrize("name", ["gpt-5", "mlx-community/Qwen3-8B", "../tiny", "some-org", ""])
def test_44_an_unknown_model_is_a_404_without_a_look_at_the_network(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr("socket.getaddrinfo", refuse)
    monkeypatch.setattr("socket.socket.connect", refuse)
    with asgi(says("ok")) as client:
        error = error_of(client.chat(model=name), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        for known in ("some-org/tiny-qwen", "tiny-qwen", "gpt-4o"):
            assert client.chat(model=known).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"host": "evil.example"},
        {"host": "rebind.localhost.evil"},
    ],
)
def test_45_a_foreign_page_is_refused_on_its_origin_and_on_its_host(headers: dict[str, str]) -> None:
    with asgi(says("ok")) as client:
        response = client.post("/v1/chat/completions", {"messages": HI}, headers=headers)
        assert error_of(response, 403)["code"] == f"forbidden_{next(iter(headers))}"
        assert not client.engine.requests
    assert not any(name.startswith("access-control") for name in response.headers)


def test_a_stream_of_the_real_model_is_its_whole_answer(tiny: AsgiClient) -> None:
    whole = tiny.chat(max_tokens=12).json()["choices"][0]["message"]["content"]
    assert streamed_text(tiny.chat(max_tokens=12, stream=True)) == whole
