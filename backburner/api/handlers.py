"""Every error that leaves the app has the shape that the endpoint's clients read: OpenAI's, or Anthropic's."""

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from backburner.api.errors import (
    ApiError,
    InvalidRequestError,
    error_response,
    from_engine,
    internal_error,
    param_name,
)
from backburner.api.messages.errors import PATH, anthropic_response
from backburner.errors import BackburnerError


def refusal_at(path: str, error: ApiError) -> Response:
    """The response to a request to `path` that is refused."""
    anthropic = path == PATH or path.startswith(f"{PATH}/")
    return anthropic_response(error) if anthropic else error_response(error)


def add_error_handlers(app: FastAPI) -> None:
    async def api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return refusal_at(request.scope["path"], error)

    async def engine_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, BackburnerError)
        return refusal_at(request.scope["path"], from_engine(error))

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
        message = f"{error.detail}: {request.method} {request.url.path}"
        return refusal_at(
            request.scope["path"],
            ApiError(error.status_code, message, code=code, headers=dict(error.headers or {})),
        )

    async def validation_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        return refusal_at(
            request.scope["path"],
            InvalidRequestError(first["msg"], param=param_name(tuple(first["loc"])[1:])),
        )

    async def defect(request: Request, error: Exception) -> Response:
        # Starlette raises it again, so that it is logged.
        return refusal_at(request.scope["path"], internal_error())

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(BackburnerError, engine_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, validation_error)
    app.add_exception_handler(Exception, defect)
