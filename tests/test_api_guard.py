"""What a loopback server tells strangers: nothing; and what it tells friends about itself."""

import pytest

from backburner.engine.request import WorkerStatus
from tests.api_support import MODEL, asgi, error_of
from tests.scripted_engine import says


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "127.0.0.1:1", "127.8.9.1", "[::1]", "[::1]:8080", "LOCALHOST"]
)
def test_this_machine_may_ask_under_any_of_its_loopback_names(host: str) -> None:
    with asgi(says("ok")) as client:
        assert client.get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "localhost.evil.example", "192.168.1.5", "0.0.0.0", "", "[", "1"],
)
def test_a_foreign_host_header_is_refused(host: str) -> None:
    with asgi(says("ok")) as client:
        assert error_of(client.get("/health", headers={"host": host}), 403)["code"] == "forbidden_host"


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost.evil.example", "file://", "http://[", ""]
)
def test_a_foreign_origin_is_refused_on_every_route(origin: str) -> None:
    with asgi(says("ok")) as client:
        for response in (
            client.get("/v1/models", headers={"origin": origin}),
            client.post("/v1/chat/completions", {}, headers={"origin": origin}),
            client.request("OPTIONS", "/v1/chat/completions", headers={"origin": origin}),
            client.get("/nothing", headers={"origin": origin}),
        ):
            assert error_of(response, 403)["code"] == "forbidden_origin"
            assert not any(name.startswith("access-control") for name in response.headers)
        assert not client.engine.requests


def test_a_page_of_this_machine_may_ask() -> None:
    with asgi(says("ok")) as client:
        assert client.get("/health", headers={"origin": "http://localhost:3000"}).status_code == 200


def test_a_server_bound_elsewhere_answers_to_any_name_because_it_asks_for_a_key() -> None:
    with asgi(says("ok"), bound_host="192.168.1.5", api_keys=("k",)) as client:
        assert client.get("/health", headers={"host": "studio.local:8080"}).status_code == 200
        assert client.get("/v1/models", headers={"host": "studio.local:8080"}).status_code == 401
    with asgi(says("ok"), bound_host="192.168.1.5") as client:
        assert (
            error_of(client.get("/health", headers={"host": "studio.local"}), 403)["code"] == "forbidden_host"
        )
        assert client.get("/health", headers={"host": "192.168.1.5"}).status_code == 200


def test_models_are_listed_with_the_effective_context_under_every_name_clients_read() -> None:
    with asgi(says("ok"), ctx_size=100_000) as client:
        listed = client.get("/v1/models").json()
        assert listed["object"] == "list"
        (entry,) = listed["data"]
        assert (entry["id"], entry["object"], entry["owned_by"]) == (MODEL, "model", "backburner")
        assert entry["max_model_len"] == entry["context_length"] == entry["meta"]["n_ctx"] == 4096
        for name in (MODEL, "tiny-qwen", "gpt-4o"):
            assert client.get(f"/v1/models/{name}").json() == entry
        assert error_of(client.get("/v1/models/other"), 404)["code"] == "model_not_found"


def test_health_without_a_worker() -> None:
    with asgi(says("ok")) as client:
        response = client.get("/health")
    assert response.status_code == 200
    assert response.json() == {
        "status": "ok",
        "model": MODEL,
        "ctx_size": 4096,
        "queue": {"running": 0, "waiting": 0},
        "restarts": 0,
        "worker": None,
        "workers": [],
    }


def test_health_shows_the_worker() -> None:
    with asgi(says("ok")) as client:
        client.engine.worker = WorkerStatus(
            "lost", "usb", "phone", "baked", 3, 4, 5, 6, 96.0, 1e9, "cable pulled"
        )
        worker = client.get("/health").json()["worker"]
    assert worker == {
        "state": "lost",
        "address": "usb",
        "name": "phone",
        "engine": "baked",
        "held_pages": 3,
        "stored_pages": 4,
        "memory_bytes": 5,
        "used_bytes": 6,
        "rtt_us": 96.0,
        "bytes_per_s": 1e9,
        "error": "cable pulled",
        "reconnects": 0,
        "layers": None,
        "bytes_sent": 0,
        "bytes_received": 0,
        "exchanges": 0,
        "moved_pages": 0,
        "found_pages": 0,
        "bake": None,
    }


def test_health_of_a_dead_engine_is_503_and_says_why() -> None:
    with asgi(says("ok")) as client:
        client.engine.alive = False
        response = client.get("/health")
    assert response.status_code == 503
    assert response.json()["status"] == "error"
    assert "dead" in response.json()["error"]


def test_the_schema_names_the_fields_of_a_request() -> None:
    with asgi(says("ok")) as client:
        schema = client.get("/openapi.json").json()
    body = schema["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]
    assert "messages" in body["schema"]["properties"]
    assert "$ref" not in str(body)
