"""GET /metrics: the endpoint's own counts, the engine's snapshot, and one run with a worker that makes them move."""

from dataclasses import replace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from backburner.engine.request import EngineTotals, RunnerStatus, WorkerStatus
from tests.api_support import asgi
from tests.processes import ask, serve, until
from tests.scripted_engine import Script, says

WORKER = WorkerStatus(
    "ready",
    "tcp://127.0.0.1:5",
    "phone",
    "native",
    12,
    14,
    1000,
    600,
    96.0,
    244e6,
    reconnects=2,
    bytes_sent=11,
    bytes_received=22,
    exchanges=33,
    moved_pages=44,
    found_pages=55,
)

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Values:
    return {
        (sample.name.removeprefix("backburner_"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(values: Values, name: str, **labels: str) -> float:
    return values[name, frozenset(labels.items())]


def test_it_is_prometheus_text_and_every_name_is_ours_with_help() -> None:
    with asgi(says("ok")) as client:
        client.engine.worker = WORKER
        response = client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    families = list(text_string_to_metric_families(response.text))
    assert len(families) > 20
    for family in families:
        assert family.name.startswith("backburner_")
        assert family.documentation


def test_requests_are_counted_by_endpoint_and_status_in_bounded_labels() -> None:
    with asgi(says("ok")) as client:
        client.chat()
        client.chat(stream=True)
        client.chat(messages=[])
        client.get("/v1/models/gpt-4o")
        client.get("/v1/models/other")
        client.get("/v1/models", headers={"origin": "https://evil.example"})
        for number in range(5):
            client.get(f"/nothing/{number}")
        values = parsed(client.get("/metrics").text)
    requests = {
        (dict(labels)["endpoint"], dict(labels)["status"]): count
        for (name, labels), count in values.items()
        if name == "http_requests_total"
    }
    assert requests == {
        ("/v1/chat/completions", "200"): 2,
        ("/v1/chat/completions", "400"): 1,
        ("/v1/models/{name:path}", "200"): 1,
        ("/v1/models/{name:path}", "404"): 1,
        ("/v1/models", "403"): 1,
        ("other", "404"): 5,
    }


def test_each_app_counts_for_itself() -> None:
    with asgi(says("ok")) as one, asgi(says("ok")) as other:
        one.chat()
        assert value(parsed(one.get("/metrics").text), "time_to_first_token_seconds_count") == 1
        assert value(parsed(other.get("/metrics").text), "time_to_first_token_seconds_count") == 0


def test_time_to_first_token_is_that_of_the_first_token_and_counts_answers_that_had_one() -> None:
    slow = Script(says("a b c").tokens, prefill=((1, 2), (2, 2)), prefill_delay_s=0.1, token_delay_s=0.05)
    scripts = [slow, Script(fault_at=0), slow]
    with asgi(lambda request: scripts.pop(0)) as client:
        client.chat()
        client.chat()
        client.chat(stream=True)
        values = parsed(client.get("/metrics").text)
    assert value(values, "time_to_first_token_seconds_count") == 2
    assert 0.4 <= value(values, "time_to_first_token_seconds_sum") < 4
    assert value(values, "time_to_first_token_seconds_bucket", le="0.1") == 0
    assert value(values, "time_to_first_token_seconds_bucket", le="+Inf") == 2


def test_the_engines_snapshot_is_shown_in_base_units() -> None:
    with asgi(says("ok")) as client:
        engine = client.engine
        engine.max_queue = 64
        engine.worker = WORKER
        engine.totals = EngineTotals(5, 2, 1, 700, 300, 90, 1.5, 2.5, 3.5)
        engine.runner = RunnerStatus(3, 4096, 7, 8, 4, 2048, 9.5, 2, 1, 4)
        values = parsed(client.get("/metrics").text)
    expected = {
        "up": 1,
        "context_tokens": 4096,
        "requests_running": 0,
        "requests_waiting": 0,
        "queue_limit": 64,
        "prompt_tokens_total": 1000,
        "cached_tokens_total": 300,
        "generated_tokens_total": 90,
        "sessions_kept": 3,
        "spill_bytes": 4096,
        "spill_pages": 7,
        "spill_partials_total": 8,
        "split_tokens_total": 2048,
        "split_worker_seconds_total": 9.5,
        "seam_layer": 4,
    }
    assert {name: value(values, name) for name in expected} == expected
    for outcome, count in (("finished", 5), ("failed", 2), ("cancelled", 1)):
        assert value(values, "generations_total", outcome=outcome) == count
    for stage, seconds in (("queue", 1.5), ("prefill", 2.5), ("decode", 3.5)):
        assert value(values, "stage_seconds_total", stage=stage) == seconds
    for outcome, count in (("split", 4), ("whole", 2), ("lost", 1)):
        assert value(values, "long_reads_total", outcome=outcome) == count
    of_worker = {
        "up": 1,
        "rtt_seconds": 96e-6,
        "bandwidth_bytes_per_second": 244e6,
        "held_pages": 12,
        "stored_pages": 14,
        "memory_bytes": 1000,
        "used_bytes": 600,
        "reconnects_total": 2,
        "sent_bytes_total": 11,
        "received_bytes_total": 22,
        "exchanges_total": 33,
        "moved_pages_total": 44,
        "found_pages_total": 55,
    }
    for name, count in of_worker.items():
        label = {"worker": "0", "address": WORKER.address}
        assert value(values, f"worker_{name}", **label) == pytest.approx(count), name


def test_a_lost_worker_and_a_dead_engine_are_still_told_about() -> None:
    with asgi(says("ok")) as client:
        client.engine.worker = replace(WORKER, state="lost", error="cable pulled")
        values = parsed(client.get("/metrics").text)
        assert value(values, "worker_up", worker="0", address=WORKER.address) == 0
        client.engine.alive = False
        response = client.get("/metrics")
    assert response.status_code == 200
    assert value(parsed(response.text), "up") == 0


def test_with_a_real_worker_bytes_pages_and_tokens_grow_and_a_lost_one_shows() -> None:
    with serve("--device", "loopback") as server:

        def now() -> Values:
            return parsed(httpx.get(f"{server.url}/metrics", timeout=10).text)

        def of_worker(values: Values, name: str) -> float:
            return value(values, f"worker_{name}", worker="0", address="loopback")

        before = now()
        assert of_worker(before, "up") == 1
        assert of_worker(before, "sent_bytes_total") > 0, "greeting and measuring are traffic, too"
        assert "4821" in ask(server, filler=60)
        server.until_idle()
        after = now()
        for name in ("sent_bytes_total", "received_bytes_total", "exchanges_total", "moved_pages_total"):
            assert of_worker(after, name) > of_worker(before, name), name
        assert of_worker(after, "held_pages") > 0
        until(lambda: of_worker(now(), "stored_pages") > 0)
        until(lambda: value(now(), "spill_pages") > 0)
        assert value(after, "spill_bytes") > 0
        assert value(after, "sessions_kept") == 1
        assert value(after, "prompt_tokens_total") > 1000
        assert value(after, "generated_tokens_total") > 5
        assert value(after, "generations_total", outcome="finished") == 1
        for stage in ("prefill", "decode"):
            assert value(after, "stage_seconds_total", stage=stage) > 0
        assert value(after, "long_reads_total", outcome="split") + value(
            after, "long_reads_total", outcome="whole"
        )
        server.worker().kill()
        assert "4821" in ask(server, filler=60)
        lost = now()
        assert of_worker(lost, "up") == 0
        assert value(lost, "spill_partials_total") > 0
        assert of_worker(lost, "sent_bytes_total") >= of_worker(after, "sent_bytes_total")


def test_a_worker_that_bakes_has_rows_of_its_own() -> None:
    bake = {
        "pages": 48,
        "baking": 1,
        "refused": 2,
        "shed": 3,
        "reused": 16,
        "bytes": 2**31,
        "share": 0.25,
        "error": "words",
    }
    with asgi(says("ok")) as client:
        client.engine.worker = WORKER
        assert "worker_bake_" not in client.get("/metrics").text
        client.engine.worker = replace(WORKER, bake=bake)
        values = parsed(client.get("/metrics").text)
        assert client.get("/health").json()["worker"]["bake"] == bake
    for name in bake.keys() - {"error"}:
        assert value(values, f"worker_bake_{name}", worker="0", address=WORKER.address) == bake[name]
