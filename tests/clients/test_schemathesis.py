"""schemathesis on our own OpenAPI: whatever it makes up is answered or refused, never with a defect."""

import time

import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, settings

from tests.api_support import app_for
from tests.scripted_engine import ScriptedEngine, says

schemathesis = pytest.importorskip("schemathesis")
pytestmark = pytest.mark.clients

# One answer may take this long on a busy machine; a hang takes for ever.
SLOW_S = 20.0
LOCAL = {"Host": "localhost"}


def app() -> FastAPI:
    return app_for(ScriptedEngine(says("hello 🙂")), ctx_size=256)


schema = schemathesis.openapi.from_asgi("/openapi.json", app(), headers=LOCAL)


@schema.parametrize()
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_made_up_requests_are_answered_or_refused(case) -> None:
    started = time.monotonic()
    response = case.call(headers=LOCAL)
    assert response.status_code < 500, response.text
    assert time.monotonic() - started < SLOW_S
    if response.status_code >= 400 and response.content:
        assert response.json()["error"]["message"]
