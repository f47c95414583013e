"""GET /v1/models and /health: what is served, and whether it works."""

from dataclasses import asdict
from typing import Any

from fastapi.responses import JSONResponse

from backburner.api.prompt import check_model
from backburner.api.settings import Api


def model_entry(api: Api, created_s: int) -> dict[str, Any]:
    ctx_size = api.effective_ctx_size()
    return {
        "id": api.settings.model_id,
        "object": "model",
        "created": created_s,
        "owned_by": "backburner",
        # Three names for one number: vLLM's, OpenRouter's and llama.cpp's. Agents that find none assume 128k.
        "max_model_len": ctx_size,
        "context_length": ctx_size,
        "meta": {"n_ctx": ctx_size},
    }


def model_list(api: Api, created_s: int) -> JSONResponse:
    return JSONResponse({"object": "list", "data": [model_entry(api, created_s)]})


def model_by_name(api: Api, name: str, created_s: int) -> JSONResponse:
    check_model(api.settings, name)
    return JSONResponse(model_entry(api, created_s))


def health(api: Api) -> JSONResponse:
    status = api.engine.status()
    body: dict[str, Any] = {
        "status": "ok" if status.alive else "error",
        "model": api.settings.model_id,
        "ctx_size": api.effective_ctx_size(),
        "queue": {"running": status.running, "waiting": status.waiting},
        "worker": None if status.worker is None else asdict(status.worker),
        "workers": [asdict(worker) for worker in status.workers],
    }
    if not status.alive:
        body["error"] = status.error or "the engine has stopped"
    return JSONResponse(body, 200 if status.alive else 503)
