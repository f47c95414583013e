"""API keys, CORS and the address: who is let in, and what the others are told."""

import os
import socket
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from starlette.datastructures import Headers

from backburner.api.access import ApiKeys, read_key_file, split_keys
from backburner.api.guard import parse_origins
from backburner.api.server import require_keys_beyond_loopback
from backburner.errors import ConfigError
from tests.api_support import AsgiClient, asgi, error_of, listening
from tests.scripted_engine import says

KEYS = {"api_keys": ("first-key", "second-key")}
PAGE = "https://chat.example"

ROUTES = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/gpt-4o"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/apply-template"),
    ("GET", "/props"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/docs"),
    ("GET", "/nothing"),
    ("OPTIONS", "/v1/models"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer first-key2"},
        {"authorization": "Bearer first-ke"},
        {"authorization": "Basic first-key"},
        {"authorization": "first-key"},
        {"authorization": "Bearer "},
        {"x-api-key": "wrong"},
        {"x-api-key": "first-key,second-key"},
        # The first counts; a key that is wrong is not helped by another header.
        {"authorization": "Bearer wrong", "x-api-key": "first-key"},
    ],
)
def test_without_a_key_every_route_but_health_is_401(method: str, path: str, headers: dict[str, str]) -> None:
    with asgi(says("ok"), **KEYS) as client:
        response = client.request(method, path, headers=headers)
        error = error_of(response, 401)
        assert (error["code"], error["type"]) == ("invalid_api_key", "invalid_request_error")
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.headers["x-should-retry"] == "false"
        assert "first-key" not in response.text
        assert not client.engine.requests


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer first-key"},
        {"authorization": "bearer second-key"},
        {"x-api-key": "second-key"},
        {"authorization": "Basic dTpw", "x-api-key": "first-key"},
    ],
)
def test_each_key_is_good_in_either_header(headers: dict[str, str]) -> None:
    with asgi(says("ok"), **KEYS) as client:
        assert client.get("/v1/models", headers=headers).status_code == 200


def test_health_needs_no_key() -> None:
    with asgi(says("ok"), **KEYS) as client:
        assert client.get("/health").status_code == 200
        head = client.request("HEAD", "/health")
        assert (head.status_code, head.content) == (200, b"")
        assert client.get("/health", headers={"authorization": "Bearer wrong"}).status_code == 200


def test_without_keys_whatever_a_client_sends_is_ignored() -> None:
    with asgi(says("ok")) as client:
        assert client.get("/v1/models", headers={"authorization": "Bearer unused"}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_anthropics_clients_get_their_own_shape(path: str) -> None:
    with asgi(says("ok"), **KEYS) as client:
        response = client.post(path, {}, headers={"x-api-key": "wrong"})
    assert response.status_code == 401
    body = response.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == "authentication_error"


def test_a_header_of_odd_bytes_is_a_wrong_key() -> None:
    with asgi(says("ok"), **KEYS) as client:
        odd: Any = {"authorization": b"Bearer \xff\xfe"}
        assert client.get("/v1/models", headers=odd).status_code == 401


def test_the_openai_client_raises_authentication_error_without_a_retry() -> None:
    with listening(says("ok"), **KEYS) as (url, _):
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{url}/v1", api_key="wrong").models.list()
        assert openai.OpenAI(base_url=f"{url}/v1", api_key="first-key").models.list().data


def test_keys_are_kept_as_digests_and_all_of_them_compared() -> None:
    keys = ApiKeys(("a", "b", "a"))
    assert "a" not in vars(keys)["_digests"]
    assert len(vars(keys)["_digests"]) == 2
    for key in ("a", "b"):
        assert keys.refusal("/v1/models", Headers({"x-api-key": key})) is None
    assert not ApiKeys()


def test_keys_may_be_repeated_or_separated_by_commas() -> None:
    assert split_keys(["a,b", " c "], "--api-key") == ["a", "b", "c"]
    for bad in ("", "a,", "two words", "ключ"):
        with pytest.raises(ConfigError, match="--api-key: a key has to be"):
            split_keys([bad], "--api-key")


def test_a_key_file_has_one_a_line_and_comments(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys"
    path.write_text("# mine\nfirst\n\n  second  \n#third\n")
    path.chmod(0o600)
    assert read_key_file(path) == ["first", "second"]
    assert not caplog.records
    path.chmod(0o644)
    assert read_key_file(path) == ["first", "second"]
    assert "chmod 600" in caplog.text
    assert "first" not in caplog.text


@pytest.mark.parametrize("content", ["", "# none\n", "two words\n"])
def test_a_key_file_without_a_usable_key_is_refused_and_never_means_open_to_all(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "keys"
    path.write_text(content)
    with pytest.raises(ConfigError, match="--api-key-file") as refused:
        read_key_file(path)
    assert "two words" not in str(refused.value)


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_a_key_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("key\n")
    path.chmod(0)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_key_file(path)


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_beyond_loopback_only_with_a_key(address: str) -> None:
    def bound() -> socket.socket:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            sock = socket.socket(family)
            sock.bind((address, 0))
        except OSError as e:
            pytest.skip(f"no such address here: {e}")
        return sock

    with bound() as sock:
        require_keys_beyond_loopback(sock, True)
        assert sock.fileno() >= 0
    with bound() as sock:
        with pytest.raises(ConfigError, match="needs an API key"):
            require_keys_beyond_loopback(sock, False)
        assert sock.fileno() == -1
    with socket.create_server(("127.0.0.1", 0)) as sock:
        require_keys_beyond_loopback(sock, False)


# -- CORS ---------------------------------------------------------------------------------------------------------


def preflight(client: AsgiClient, path: str = "/v1/chat/completions", origin: str = PAGE) -> httpx.Response:
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-os",
    }
    return client.request("OPTIONS", path, headers=headers)


def test_an_allowed_origin_gets_its_preflight_without_a_key_and_its_answer_with_one() -> None:
    with asgi(says("ok"), cors_origins=(PAGE,), **KEYS) as client:
        answer = preflight(client)
        assert answer.status_code == 204
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert answer.headers["access-control-allow-headers"] == "authorization,content-type,x-stainless-os"
        assert answer.headers["vary"] == "origin"
        for key, status in (("first-key", 200), ("wrong", 401)):
            response = client.get("/v1/models", headers={"origin": PAGE, "x-api-key": key})
            assert response.status_code == status
            assert response.headers["access-control-allow-origin"] == PAGE, (
                "a page has to see its errors, too"
            )
            assert "access-control-allow-credentials" not in response.headers


def test_a_stream_has_the_header_too() -> None:
    with asgi(says("ok"), cors_origins=(PAGE,)) as client:
        response = client.post(
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "hi"}], "stream": True},
            headers={"origin": PAGE},
        )
    assert response.headers["access-control-allow-origin"] == PAGE


def test_a_star_lets_in_any_origin() -> None:
    with asgi(says("ok"), cors_origins=("*",)) as client:
        for origin in (PAGE, "null", "app://obsidian.md"):
            assert preflight(client, origin=origin).headers["access-control-allow-origin"] == "*"
            assert client.get("/v1/models", headers={"origin": origin}).status_code == 200


@pytest.mark.parametrize(
    ("path", "origin", "cors_origins"),
    [
        ("/v1/models", "https://evil.example", (PAGE,)),
        ("/v1/models", "https://chat.example.evil.example", (PAGE,)),
        ("/v1/models", "http://chat.example", (PAGE,)),
        ("/v1/models", PAGE, ()),
        ("/v1/models", "null", (PAGE,)),
        # What tells of the server is not for pages.
        ("/metrics", PAGE, (PAGE,)),
        ("/props", PAGE, ("*",)),
    ],
)
def test_other_origins_stay_outside(path: str, origin: str, cors_origins: tuple[str, ...]) -> None:
    with asgi(says("ok"), cors_origins=cors_origins) as client:
        for response in (
            client.get(path, headers={"origin": origin}),
            preflight(client, path, origin),
        ):
            assert error_of(response, 403)["code"] == "forbidden_origin"
            assert not any(name.startswith("access-control") for name in response.headers)


def test_an_allowed_origin_does_not_open_the_door_for_a_rebound_name() -> None:
    with asgi(says("ok"), cors_origins=(PAGE,)) as client:
        response = client.get("/v1/models", headers={"origin": PAGE, "host": "evil.example"})
        assert error_of(response, 403)["code"] == "forbidden_host"


def test_beyond_loopback_our_own_pages_may_ask_and_others_may_not() -> None:
    with asgi(says("ok"), bound_host="0.0.0.0", **KEYS) as client:

        def ask(origin: str) -> int:
            headers = {"host": "studio.local:8080", "origin": origin, "x-api-key": "first-key"}
            return client.get("/v1/models", headers=headers).status_code

        assert ask("http://studio.local:8080") == 200
        assert ask("http://studio.local:3000") == 403
        assert ask("https://evil.example") == 403


def test_origins_are_checked_when_they_are_given() -> None:
    assert parse_origins(["HTTP://localhost:3000/, https://a.example", "*"]) == (
        "http://localhost:3000",
        "https://a.example",
        "*",
    )
    assert parse_origins(["app://obsidian.md"]) == ("app://obsidian.md",)
    for bad in ("example.com", "http://", "http://a/b", "http://u@a", "", "http://[", "*.example"):
        with pytest.raises(ConfigError, match="is not an origin"):
            parse_origins([bad])
