"""/tokenize, /detokenize, /apply-template and /props: what llama-server's and vLLM's clients read."""

import threading
from typing import Any

import pytest
from fastapi.responses import JSONResponse

from tests.api_support import HI, MODEL, asgi, error_of
from tests.scripted_engine import says, tiny_tokenizer

TEXTS = ["Hello, world!", "", " ", "naïve 日本語 🙂", "<|im_start|>user\n", "a\x00b"]


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_of_a_text_and_back(text: str) -> None:
    with asgi(says("ok")) as client:
        answer = client.post("/tokenize", {"content": text})
        assert answer.status_code == 200
        tokens = answer.json()["tokens"]
        assert tokens == tiny_tokenizer().encode(text, add_special_tokens=False)
        assert client.post("/detokenize", {"tokens": tokens}).json()["content"] == text
        assert not client.engine.requests


def test_null_means_not_given() -> None:
    with asgi(says("ok")) as client:
        for text, null in (
            ("content", "add_special"),
            ("prompt", "add_special_tokens"),
            ("content", "with_pieces"),
        ):
            given = client.post("/tokenize", {text: "hi", null: None})
            assert given.json() == client.post("/tokenize", {text: "hi"}).json()
            assert given.status_code == 200


def test_pieces_join_to_the_text_and_are_bytes_where_a_character_is_cut() -> None:
    text = "go 🙂 on"
    with asgi(says("ok")) as client:
        pieces = client.post("/tokenize", {"content": text, "with_pieces": True}).json()["tokens"]
    assert [p["id"] for p in pieces] == tiny_tokenizer().encode(text, add_special_tokens=False)
    assert any(isinstance(p["piece"], list) for p in pieces)
    joined = b"".join(
        bytes(p["piece"]) if isinstance(p["piece"], list) else p["piece"].encode() for p in pieces
    )
    assert joined.decode() == text


def test_vllms_fields_count_a_prompt_or_a_conversation() -> None:
    with asgi(says("ok"), ctx_size=1000) as client:
        answer = client.post("/tokenize", {"model": MODEL, "prompt": "hi there", "return_token_strs": True})
        body = answer.json()
        assert body["count"] == len(body["tokens"]) > 0
        assert body["max_model_len"] == 1000
        assert "".join(body["token_strs"]) == "hi there"
        chat = client.post("/tokenize", {"model": MODEL, "messages": HI}).json()
        usage = client.chat().json()["usage"]
        assert chat["count"] == usage["prompt_tokens"]
        assert client.post("/detokenize", {"tokens": body["tokens"]}).json()["prompt"] == "hi there"


def test_the_template_is_applied_as_a_chat_request_would() -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    body: dict[str, Any] = {"messages": HI, "tools": tools, "chat_template_kwargs": {"enable_thinking": True}}
    with asgi(says("ok")) as client:
        prompt = client.post("/apply-template", body).json()["prompt"]
        assert "look" in prompt
        assert prompt.rstrip().endswith("<think>")
        client.chat(**body | {"messages": HI})
        sent = client.engine.requests[0].prompt
    assert tuple(tiny_tokenizer().encode(prompt, add_special_tokens=False)) == sent


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 5}, "content"),
        ("/tokenize", {"content": ["a"]}, "content"),
        ("/tokenize", {"content": "a", "prompt": "b"}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": "hi"}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "1 2"}, "tokens"),
        ("/detokenize", {"tokens": [1.5]}, "tokens[0]"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens[0]"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": [{"role": "robot"}]}, "messages[0].role"),
    ],
)
def test_bad_input_is_400_and_names_the_field(path: str, body: dict[str, Any], param: str) -> None:
    with asgi(says("ok")) as client:
        assert error_of(client.post(path, body), 400)["param"] == param


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/apply-template"])
def test_bodies_are_read_as_strictly_as_elsewhere(path: str) -> None:
    with asgi(says("ok"), max_body_bytes=100) as client:
        assert error_of(client.raw(b'{"content": NaN}', path), 400)["code"] == "invalid_json"
        assert error_of(client.raw(b'{"content": "\\ud83d"}', path), 400)["code"] == "invalid_json"
        assert error_of(client.raw(b"[]", path), 400)["code"] == "invalid_json"
        error_of(client.raw(b" " * 200, path), 413)
        error_of(client.raw(b"{}", path, content_type="text/plain"), 415)
        error_of(client.get(path), 405)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"content": "a"}),
        ("/detokenize", {"tokens": [1]}),
        ("/apply-template", {"messages": HI}),
    ],
)
def test_an_answer_is_made_into_bytes_in_the_thread(
    path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered_by: list[str] = []

    def render(self: JSONResponse, content: Any) -> bytes:
        rendered_by.append(threading.current_thread().name)
        return b"{}"

    monkeypatch.setattr(JSONResponse, "render", render)
    with asgi(says("ok")) as client:
        assert client.post(path, body).status_code == 200
    assert [name.rpartition("_")[0] for name in rendered_by] == ["look"]


def test_an_unknown_model_is_404() -> None:
    with asgi(says("ok")) as client:
        assert error_of(client.post("/tokenize", {"model": "no", "content": "a"}), 404)["param"] == "model"


def test_props_have_what_agents_probe_for() -> None:
    with asgi(says("ok"), ctx_size=2048) as client:
        props = client.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 2048
    assert props["default_generation_settings"]["params"]["temperature"] == 0
    assert props["total_slots"] == 1
    assert props["model_alias"] == props["model_path"] == MODEL
    assert props["chat_template"] == tiny_tokenizer().chat_template
    assert props["eos_token"]
    assert props["build_info"].startswith("backburner ")
    assert props["modalities"] == {"vision": False, "audio": False}
