"""Text completions: the four forms of a prompt, and one choice for each."""

from typing import Any

import pytest

from backburner.engine.request import GenerationRequest
from tests.api_support import MODEL, asgi, error_of, frames, streamed_text
from tests.scripted_engine import Script, says, tiny_tokenizer, tokens_of


def echo(request: GenerationRequest) -> Script:
    """Says its own prompt, so that choices can be told apart."""
    return Script(request.prompt)


def test_a_completion_has_openai_shape() -> None:
    with asgi(says(" world")) as client:
        body = client.complete(prompt="hello").json()
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["model"] == MODEL
    assert body["choices"] == [{"index": 0, "text": " world", "logprobs": None, "finish_reason": "stop"}]
    assert body["usage"]["prompt_tokens"] == len(tokens_of("hello"))


def test_a_completion_keeps_its_first_space() -> None:
    with asgi(says(" world")) as client:
        assert streamed_text(client.complete(stream=True)) == " world"


@pytest.mark.parametrize(
    "prompt",
    ["one", ["one", "two"], list(tokens_of("one")), [list(tokens_of("one")), list(tokens_of("two"))]],
)
@pytest.mark.parametrize("stream", [False, True])
def test_each_form_of_prompt_gives_one_indexed_choice_per_prompt(prompt: Any, stream: bool) -> None:
    wanted = ["one", "two"] if isinstance(prompt, list) and not isinstance(prompt[0], int) else ["one"]
    with asgi(echo) as client:
        response = client.complete(prompt=prompt, stream=stream, stream_options={"include_usage": True})
    assert response.status_code == 200, response.text
    if stream:
        chunks = frames(response)
        choices = [c for chunk in chunks for c in chunk["choices"]]
        texts = ["".join(c["text"] for c in choices if c["index"] == i) for i in range(len(wanted))]
        assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["stop"] * len(wanted)
        usage = chunks[-1]["usage"]
    else:
        choices = response.json()["choices"]
        texts = [c["text"] for c in choices]
        assert [c["index"] for c in choices] == list(range(len(wanted)))
        usage = response.json()["usage"]
    assert texts == wanted
    tokens = sum(len(tokens_of(w)) for w in wanted)
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (
        tokens,
        tokens,
        2 * tokens,
    )


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        5,
        "",
        [],
        [""],
        [[]],
        ["a", 1],
        [1, "a"],
        [1.5],
        [True],
        [[1], "a"],
        [-1],
        [10**9],
        {},
        ["a"] * 129,
    ],
)
def test_other_prompts_are_a_400_that_names_the_field(prompt: Any) -> None:
    with asgi(echo) as client:
        assert error_of(client.complete(prompt=prompt), 400)["param"] == "prompt"
        assert not client.engine.requests


def test_a_missing_prompt_is_a_400() -> None:
    with asgi(echo) as client:
        error = error_of(client.post("/v1/completions", {}), 400)
    assert error["param"] == "prompt"
    assert error["code"] == "missing_required_parameter"


def test_the_last_token_of_the_vocabulary_is_a_valid_prompt() -> None:
    with asgi(says("A")) as client:
        assert client.complete(prompt=[len(tiny_tokenizer()) - 1]).status_code == 200
        assert client.complete(prompt=[len(tiny_tokenizer())]).status_code == 400


def test_one_prompt_too_long_refuses_all_before_the_queue() -> None:
    with asgi(echo, ctx_size=32) as client:
        error = error_of(client.complete(prompt=["ok", "word " * 99]), 400)
        assert not client.engine.requests
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "prompt"


@pytest.mark.parametrize("fields", [{"suffix": "x"}, {"best_of": 2}, {"prompt_logprobs": 1}])
def test_fields_that_would_change_the_answer_are_refused_by_name(fields: dict[str, Any]) -> None:
    with asgi(echo) as client:
        error = error_of(client.complete(**fields), 400)
    assert error["param"] == next(iter(fields))
    assert "not supported yet" in error["message"]


def test_their_neutral_values_are_accepted() -> None:
    with asgi(echo) as client:
        response = client.complete(echo=False, suffix="", best_of=1, logprobs=None, n=1, logit_bias={})
        off = {"typical_p": 1.0, "dry_multiplier": 0.0, "mirostat": 0, "xtc_probability": 0, "bad_words": []}
        chat = client.chat(**off, truncate_prompt_tokens=-1, n_predict=-1, allowed_token_ids=None)
    assert response.status_code == chat.status_code == 200


def test_as_many_candidates_as_answers_are_no_choice() -> None:
    with asgi(echo) as client:
        assert len(client.complete(best_of=2, n=2).json()["choices"]) == 2
        assert error_of(client.complete(best_of=3, n=2), 400)["param"] == "best_of"


def test_an_echoed_text_is_the_clients_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # As of tokenizers that normalise their input.
    monkeypatch.setattr(tiny_tokenizer()._tokenizer, "decode", lambda _: "another")
    with asgi(says("!")) as client:
        body = client.complete(prompt=["Åb", "c"], echo=True).json()
        tokens = client.complete(prompt=[5, 6], echo=True).json()
    assert [choice["text"] for choice in body["choices"]] == ["Åb!", "c!"]
    assert tokens["choices"][0]["text"] == "another!"


@pytest.mark.parametrize("max_tokens", [0, -2])
def test_max_tokens_below_one_is_a_400(max_tokens: int) -> None:
    with asgi(echo) as client:
        assert error_of(client.complete(max_tokens=max_tokens), 400)["param"] == "max_tokens"
