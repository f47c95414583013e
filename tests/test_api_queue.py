"""The queue: bounded, first come first served, and no request ahead of others with its further choices."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from backburner.engine.request import GenerationRequest
from tests.api_support import HI, asgi, error_of, eventually, frames, listening
from tests.scripted_engine import Script, says

HANGS = Script(hang_at=0)


def post(url: str, path: str = "/v1/chat/completions", **body: Any) -> httpx.Response:
    return httpx.post(
        f"{url}{path}", json={"messages": HI, "prompt": "hi", "input": "hi", **body}, timeout=20
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_one_too_many_is_429_with_a_time_to_come_back(path: str, stream: bool) -> None:
    with asgi(HANGS) as client:
        client.engine.max_queue = 0
        handle = client.engine.submit(GenerationRequest("first", (1,), 1), lambda event: None)
        assert eventually(lambda: client.engine.running)
        response = client.post(path, {"messages": HI, "prompt": "hi", "input": "hi", "stream": stream})
        error = error_of(response, 429)
        assert (error["code"], error["type"]) == ("queue_full", "rate_limit_error")
        assert int(response.headers["retry-after"]) > 0
        assert "x-should-retry" not in response.headers, "a retry is what helps here"
        assert len(client.engine.requests) == 1
        handle.cancel()


def test_it_is_refused_before_its_body_is_read_and_its_prompt_made() -> None:
    with asgi(HANGS) as client:
        client.engine.max_queue = 0
        client.engine.submit(GenerationRequest("first", (1,), 1), lambda event: None)
        assert eventually(lambda: client.engine.running)
        error_of(client.raw(b"this is no JSON"), 429)
        assert client.get("/v1/models").status_code == 200, "what generates nothing is not refused"
        assert client.post("/tokenize", {"content": "hi"}).status_code == 200


def test_anthropics_clients_get_their_own_shape() -> None:
    with asgi(HANGS) as client:
        client.engine.max_queue = 0
        client.engine.submit(GenerationRequest("first", (1,), 1), lambda event: None)
        assert eventually(lambda: client.engine.running)
        response = client.post("/v1/messages", {"model": "tiny", "max_tokens": 1, "messages": HI})
    assert response.status_code == 429
    assert response.json()["error"]["type"] == "rate_limit_error"
    assert response.headers["retry-after"]


def test_a_place_is_free_again_when_a_client_leaves_the_queue() -> None:
    gate = threading.Event()

    def script(request: GenerationRequest) -> Script:
        assert gate.wait(10)
        return says("ok")

    with listening(script) as (url, engine), ThreadPoolExecutor(2) as pool:
        engine.max_queue = 1
        first = pool.submit(post, url)
        assert eventually(lambda: engine.running)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/chat/completions", json={"messages": HI}, timeout=0.3)  # waits, and leaves
        assert eventually(lambda: engine.status().waiting == 0)
        third = pool.submit(post, url)
        assert eventually(lambda: engine.status().waiting == 1)
        assert post(url).status_code == 429
        gate.set()
        assert [first.result().status_code, third.result().status_code] == [200, 200]


def test_further_choices_queue_behind_those_who_wait() -> None:
    gate = threading.Event()

    def script(request: GenerationRequest) -> Script:
        assert gate.wait(10)
        return says("ok")

    with listening(script) as (url, engine), ThreadPoolExecutor(3) as pool:
        several = pool.submit(post, url, n=3)
        assert eventually(lambda: engine.running)
        first = engine.requests[0].request_id
        one = pool.submit(post, url)
        assert eventually(lambda: engine.status().waiting == 1)
        other = pool.submit(post, url, "/v1/completions", prompt=["a", "b"])
        assert eventually(lambda: engine.status().waiting == 2)
        gate.set()
        assert len(several.result().json()["choices"]) == 3
        assert one.result().status_code == 200
        assert len(other.result().json()["choices"]) == 2
        order = [name.removeprefix(first) for name in engine.completed]
    # The request with three choices had the engine first, and gave it up to each that waited.
    assert order[0] == ""
    assert not order[1].startswith("-1"), order
    assert order.index("-1") >= 3
    assert order.index("-2") > order.index("-1")


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_was_let_in_is_answered_whole_though_the_queue_fills_up(stream: bool) -> None:
    entered, gate = threading.Event(), threading.Event()

    def script(request: GenerationRequest) -> Script:
        entered.set()
        assert gate.wait(10)
        return says("ok")

    with listening(script) as (url, engine), ThreadPoolExecutor(2) as pool:
        engine.max_queue = 1
        several = pool.submit(post, url, n=3, stream=stream)
        assert entered.wait(10)
        waits = pool.submit(post, url)
        assert eventually(lambda: engine.status().waiting == 1)
        engine.max_queue = 0  # as full as can be, when the second choice comes
        gate.set()
        response = several.result()
        assert response.status_code == 200
        if stream:
            assert not any("error" in frame for frame in frames(response))
            choices = {c["index"] for frame in frames(response) for c in frame["choices"]}
        else:
            choices = {c["index"] for c in response.json()["choices"]}
        assert choices == {0, 1, 2}
        assert waits.result().status_code == 200
    assert [request.admitted for request in engine.requests].count(True) == 2


def test_first_come_first_served() -> None:
    with listening(says("ok", token_delay_s=0.02)) as (url, engine), ThreadPoolExecutor(6) as pool:
        jobs = []
        for number in range(6):
            jobs.append(pool.submit(post, url, max_tokens=number + 1))
            assert eventually(lambda n=number: len(engine.requests) > n)
        assert all(job.result().status_code == 200 for job in jobs)
        by_id = {request.request_id: request.max_tokens for request in engine.requests}
        assert eventually(lambda: len(engine.completed) == 6)
        assert [by_id[name] for name in engine.completed] == [1, 2, 3, 4, 5, 6]


def test_the_openai_client_comes_back_after_a_429() -> None:
    import openai

    with listening(says("ok")) as (url, engine):
        engine.max_queue = -1  # nobody
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.RateLimitError) as refused:
            client.chat.completions.create(model="gpt-4o", messages=HI)
        assert refused.value.code == "queue_full"
        opened = time.monotonic()
        engine.max_queue = 4
        assert client.chat.completions.create(model="gpt-4o", messages=HI).choices
        assert time.monotonic() - opened < 10
