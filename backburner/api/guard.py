"""Who is let in: foreign Host and Origin headers are refused, API keys are asked for, CORS is answered."""

import ipaddress
from collections.abc import MutableMapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from backburner.api.access import ApiKeys
from backburner.api.errors import ApiError
from backburner.api.handlers import refusal_at
from backburner.errors import ConfigError

# What pages of other origins may use, where they are let in: the API, and nothing that tells of the server.
CORS_PREFIX = "/v1/"
CORS_METHODS = "GET, POST, OPTIONS"
# Browsers keep the answer to a preflight for no longer than two hours.
CORS_MAX_AGE_S = 7200

ANY_ORIGIN = "*"


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_origins(given: Sequence[str]) -> tuple[str, ...]:
    """`--cors-origins`: * or origins, each text perhaps several with commas. Raises ConfigError."""
    origins = [origin.strip().lower().rstrip("/") for text in given for origin in text.split(",")]
    for origin in origins:
        try:
            parts = urlsplit(origin)
            plain = (
                f"{parts.scheme}://{parts.netloc}" == origin and parts.hostname and "@" not in parts.netloc
            )
        except ValueError:
            plain = None
        if origin != ANY_ORIGIN and not plain:
            raise ConfigError(
                f"--cors-origins: {origin!r} is not an origin; write for example http://localhost:3000, or *."
            )
    return tuple(dict.fromkeys(origins))


class Guard:
    """ASGI middleware in front of all routes.

    Any site's page can reach 127.0.0.1, directly or by DNS rebinding; neither may pass. Bound to another address the
    server is meant to be reached under names that it cannot know: then keys are what protects it, and without keys
    the check of names stays.
    """

    def __init__(
        self, app: ASGIApp, bound_host: str, keys: ApiKeys, cors_origins: tuple[str, ...] = ()
    ) -> None:
        self.app = app
        self._bound_host = bound_host.strip("[]").lower()
        self._checks_names = not keys or is_loopback(self._bound_host)
        self._keys = keys
        self._cors_origins = cors_origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers, path = Headers(scope=scope), scope["path"]
        origin = self._allowed_origin(path, headers)
        refusal = self._foreign(headers, origin)
        if refusal is None and origin is not None:
            if scope.get("method") == "OPTIONS" and "access-control-request-method" in headers:
                await self._preflight(origin, headers)(scope, receive, send)
                return
            send = _with_headers(send, self._cors_headers(origin))
        refusal = refusal or self._keys.refusal(path, headers)
        if refusal is not None:
            await refusal_at(path, refusal)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _allowed_origin(self, path: str, headers: Headers) -> str | None:
        """The request's origin, if CORS lets it in here."""
        origins = headers.getlist("origin")
        if len(origins) != 1 or not path.startswith(CORS_PREFIX):
            return None
        allowed = ANY_ORIGIN in self._cors_origins or origins[0].lower() in self._cors_origins
        return origins[0] if allowed else None

    def _foreign(self, headers: Headers, allowed: str | None) -> ApiError | None:
        # HTTP/1.0 clients may send no Host; browsers always do.
        hosts = headers.getlist("host")
        if self._checks_names:
            for host in hosts:
                if not self._is_ours(f"//{host}"):
                    return _forbidden("Host", host)
        for origin in headers.getlist("origin"):
            # Where any name is right, our own pages are those with the name that the request was sent to.
            own = not self._checks_names and [_authority(origin)] == [h.lower() for h in hosts]
            web = origin.startswith(("http://", "https://"))
            if origin != allowed and not own and not (web and self._is_ours(origin)):
                return _forbidden("Origin", origin)
        return None

    def _is_ours(self, url: str) -> bool:
        try:
            name = urlsplit(url).hostname or ""
        except ValueError:
            return False
        return is_loopback(name) or name == self._bound_host

    def _preflight(self, origin: str, headers: Headers) -> Response:
        return Response(
            status_code=204,
            headers=self._cors_headers(origin)
            | {
                "access-control-allow-methods": CORS_METHODS,
                # As asked: clients send headers of their own, such as x-stainless-*, and none is dangerous here.
                "access-control-allow-headers": headers.get(
                    "access-control-request-headers", "authorization"
                ),
                "access-control-max-age": str(CORS_MAX_AGE_S),
            },
        )

    def _cors_headers(self, origin: str) -> dict[str, str]:
        if ANY_ORIGIN in self._cors_origins:
            return {"access-control-allow-origin": ANY_ORIGIN}
        return {"access-control-allow-origin": origin, "vary": "origin"}


def _authority(origin: str) -> str | None:
    try:
        return urlsplit(origin.lower()).netloc or None
    except ValueError:
        return None


def _with_headers(send: Send, extra: dict[str, str]) -> Send:
    """Adds headers to the answer, whatever it is: a page could not read an error otherwise."""
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in extra.items()]

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *raw]
        await send(message)

    return sending


def _forbidden(header: str, value: str) -> ApiError:
    what = (
        "answers requests from this machine only" if header == "Host" else "does not serve other sites' pages"
    )
    hint = "" if header == "Host" else "; --cors-origins lets them in"
    return ApiError(
        403,
        f"{header} {value[:200]!r} is refused: this server {what}{hint}",
        code="forbidden_" + header.lower(),
    )
