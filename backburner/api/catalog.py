"""GET /v1/models, /props and /health: what is served, and whether it works."""

from dataclasses import asdict
from typing import Any

from fastapi.responses import JSONResponse

from backburner import __version__
from backburner.api.prompt import check_model
from backburner.api.settings import Api


def model_entry(api: Api, created_s: int) -> dict[str, Any]:
    ctx_size = api.effective_ctx_size()
    return {
        "id": api.settings.model_id,
        "object": "model",
        "created": created_s,
        "owned_by": "backburner",
        # One number by every name that a client looks for: vLLM's, OpenRouter's, Groq's, LM Studio's, Anthropic's and
        # llama.cpp's. Agents that find none assume 128k, or 8k.
        "max_model_len": ctx_size,
        "context_length": ctx_size,
        "context_window": ctx_size,
        "max_context_length": ctx_size,
        "max_input_tokens": ctx_size,
        "meta": {"n_ctx": ctx_size},
    }


def model_list(api: Api, created_s: int) -> JSONResponse:
    return JSONResponse({"object": "list", "data": [model_entry(api, created_s)]})


def model_by_name(api: Api, name: str, created_s: int) -> JSONResponse:
    check_model(api.settings, name)
    return JSONResponse(model_entry(api, created_s))


def props(api: Api) -> JSONResponse:
    """llama-server's answer, as far as it is true here. No path: where files lie is nobody's business."""
    ctx_size, sampling = api.effective_ctx_size(), api.settings.sampling
    tokenizer: Any = api.tokenizer
    return JSONResponse(
        {
            "default_generation_settings": {
                "n_ctx": ctx_size,
                "params": {
                    "temperature": sampling.temperature,
                    "top_p": sampling.top_p,
                    "top_k": sampling.top_k,
                    "min_p": sampling.min_p,
                    "presence_penalty": sampling.presence_penalty,
                    "frequency_penalty": sampling.frequency_penalty,
                    "repeat_penalty": sampling.repetition_penalty,
                    "n_predict": api.settings.max_tokens or -1,
                },
            },
            "total_slots": 1,
            "model_alias": api.settings.model_id,
            "model_path": api.settings.model_id,
            "modalities": {"vision": False, "audio": False},
            "chat_template": str(getattr(tokenizer, "chat_template", None) or ""),
            "bos_token": getattr(tokenizer, "bos_token", None) or "",
            "eos_token": getattr(tokenizer, "eos_token", None) or "",
            "build_info": f"backburner {__version__}",
        }
    )


def health(api: Api) -> JSONResponse:
    status = api.engine.status()
    body: dict[str, Any] = {
        "status": "ok" if status.alive else "restarting" if status.restarting else "error",
        "model": api.settings.model_id,
        "ctx_size": api.effective_ctx_size(),
        "queue": {"running": status.running, "waiting": status.waiting},
        "worker": None if status.worker is None else asdict(status.worker),
        "restarts": status.restarts,
        "workers": [asdict(worker) for worker in status.workers],
    }
    if not status.alive:
        body["error"] = status.error or "the engine has stopped"
    return JSONResponse(body, 200 if status.alive else 503)
