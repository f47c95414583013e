"""The FastAPI app: its routes, its guard, and the schema that /docs shows."""

import time
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from pydantic import BaseModel

from backburner import __version__
from backburner.api import catalog
from backburner.api.access import ApiKeys
from backburner.api.chat import chat_completions
from backburner.api.completions import completions
from backburner.api.guard import Guard
from backburner.api.handlers import add_error_handlers
from backburner.api.messages.endpoint import count_tokens, create_message
from backburner.api.messages.schemas import InputBody, MessagesBody
from backburner.api.metrics import CountRequests
from backburner.api.responses.endpoint import responses, stored_response
from backburner.api.responses.schemas import ResponsesBody
from backburner.api.schemas import ChatBody, CompletionBody
from backburner.api.settings import Api, ApiSettings, Tokenizer
from backburner.api.tokens import DetokenizeBody, TokenizeBody, apply_template, detokenize, tokenize
from backburner.engine.request import EngineClient
from backburner.errors import QueueFull


def create_app(engine: EngineClient, tokenizer: Tokenizer, settings: ApiSettings) -> FastAPI:
    """The endpoint over a running engine. The caller closes the engine."""
    api = Api(engine, tokenizer, settings)
    created_s = int(time.time())
    app = FastAPI(title="Backburner", version=__version__, redirect_slashes=False)
    app.state.api = api
    app.add_middleware(
        Guard,
        bound_host=settings.bound_host,
        keys=ApiKeys(settings.api_keys),
        cors_origins=settings.cors_origins,
    )
    app.add_middleware(CountRequests, metrics=api.metrics, routes=app.routes)
    add_error_handlers(app)

    async def admit() -> None:
        """Refuses before the body is read and its prompt made; the engine refuses who comes through meanwhile."""
        status = engine.status()
        if status.alive and status.full:
            raise QueueFull(f"{status.waiting} requests wait already; try again later.")

    generates = [Depends(admit)]

    # The routes parse the body themselves: FastAPI's own parsing answers 500 to NaN and lone surrogates.
    @app.post("/v1/chat/completions", dependencies=generates, openapi_extra=_body_schema(ChatBody))
    async def post_chat_completions(request: Request) -> Response:
        return await chat_completions(api, request)

    @app.post("/v1/completions", dependencies=generates, openapi_extra=_body_schema(CompletionBody))
    async def post_completions(request: Request) -> Response:
        return await completions(api, request)

    @app.post("/v1/responses", dependencies=generates, openapi_extra=_body_schema(ResponsesBody))
    async def post_responses(request: Request) -> Response:
        return await responses(api, request)

    @app.get("/v1/responses/{response_id}")
    async def get_response(response_id: str) -> Response:
        return stored_response(response_id)

    @app.delete("/v1/responses/{response_id}")
    async def delete_response(response_id: str) -> Response:
        return stored_response(response_id)

    @app.post("/v1/messages", dependencies=generates, openapi_extra=_body_schema(MessagesBody))
    async def post_messages(request: Request) -> Response:
        return await create_message(api, request)

    @app.post("/v1/messages/count_tokens", openapi_extra=_body_schema(InputBody))
    async def post_count_tokens(request: Request) -> Response:
        return await count_tokens(api, request)

    @app.get("/v1/models")
    async def get_models() -> Response:
        return catalog.model_list(api, created_s)

    @app.get("/v1/models/{name:path}")
    async def get_model(name: str) -> Response:
        return catalog.model_by_name(api, name, created_s)

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def get_health() -> Response:
        return catalog.health(api)

    @app.get("/props")
    async def get_props() -> Response:
        return catalog.props(api)

    @app.get("/metrics")
    async def get_metrics() -> Response:
        return api.metrics.response()

    @app.post("/tokenize", openapi_extra=_body_schema(TokenizeBody))
    async def post_tokenize(request: Request) -> Response:
        return await tokenize(api, request)

    @app.post("/detokenize", openapi_extra=_body_schema(DetokenizeBody))
    async def post_detokenize(request: Request) -> Response:
        return await detokenize(api, request)

    @app.post("/apply-template", openapi_extra=_body_schema(ChatBody))
    async def post_apply_template(request: Request) -> Response:
        return await apply_template(api, request)

    return app


def _body_schema(model: type[BaseModel]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _inlined(model)}}}}


def _inlined(model: type[BaseModel]) -> dict[str, Any]:
    """A model's JSON schema without $defs: its references would be looked up at the top of the document."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})

    def resolve(node: Any) -> Any:
        if isinstance(node, dict):
            if "$ref" in node:
                return resolve(definitions[node["$ref"].rsplit("/", 1)[-1]])
            return {key: resolve(value) for key, value in node.items()}
        return [resolve(item) for item in node] if isinstance(node, list) else node

    resolved: dict[str, Any] = resolve(schema)
    return resolved
