"""Keeps web pages away from a loopback server: refuses foreign Host and Origin headers."""

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from backburner.api.errors import ApiError, error_response


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class LoopbackGuard:
    """ASGI middleware. Any site's page can reach 127.0.0.1, directly or by DNS rebinding; neither may pass.

    Bound to another address the server is meant to be reached under names that it cannot know: no check.
    """

    def __init__(self, app: ASGIApp, bound_host: str) -> None:
        self.app = app
        self._bound_host = bound_host.strip("[]").lower()
        self._active = is_loopback(self._bound_host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._active and scope["type"] in ("http", "websocket"):
            refusal = self._refusal(Headers(scope=scope))
            if refusal is not None:
                await error_response(refusal)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _refusal(self, headers: Headers) -> ApiError | None:
        # HTTP/1.0 clients may send no Host; browsers always do.
        for host in headers.getlist("host"):
            if not self._is_ours(f"//{host}"):
                return _forbidden("Host", host)
        for origin in headers.getlist("origin"):
            if not origin.startswith(("http://", "https://")) or not self._is_ours(origin):
                return _forbidden("Origin", origin)
        return None

    def _is_ours(self, url: str) -> bool:
        try:
            name = urlsplit(url).hostname or ""
        except ValueError:
            return False
        return is_loopback(name) or name == self._bound_host


def _forbidden(header: str, value: str) -> ApiError:
    return ApiError(
        403,
        f"{header} {value[:200]!r} is refused: this server answers requests from this machine only",
        code="forbidden_" + header.lower(),
    )
