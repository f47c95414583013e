"""Binds the port and runs the app under uvicorn until a signal ends it."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from backburner.api.connection import Connection
from backburner.api.guard import is_loopback
from backburner.api.settings import Api
from backburner.api.threads import shutting_down
from backburner.config import join_address
from backburner.engine.request import Failed
from backburner.errors import ConfigError

log = logging.getLogger(__name__)

# After a signal, answers may go on for this long; then they are told why they end.
GRACE_S = 2.0
# And this long to take that last frame, before their connections are dropped.
FAREWELL_S = 1.0


def bind(host: str, port: int) -> socket.socket:
    """Takes the port, so that one in use is found before a model is loaded. Port 0 takes any free one."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"{port} is not a port; --port takes 0 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as e:
        raise ConfigError(f"cannot use {host}:{port}: {e}; check --host and --port") from e
    try:
        # A server that was restarted must not wait for its old connections to time out.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as e:
        sock.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {e}; choose another --port") from e
    return sock


def require_keys_beyond_loopback(sock: socket.socket, has_keys: bool) -> None:
    """Closes a bound socket that strangers could reach and raises ConfigError, unless there are API keys."""
    address = str(sock.getsockname()[0])
    if has_keys or is_loopback(address):
        return
    sock.close()
    raise ConfigError(
        f"--host: other machines can reach {address}, so it needs an API key: give --api-key or --api-key-file, or "
        "serve on 127.0.0.1 and use a tunnel (ssh -L PORT:127.0.0.1:PORT this-machine)."
    )


def url_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://{join_address(host, port)}"


def local_url_of(sock: socket.socket) -> str:
    """As this machine reaches it: 0.0.0.0 and :: stand for all of its addresses, and are none to connect to."""
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{join_address(host, port)}"


class Server(uvicorn.Server):
    """uvicorn, with an end that lets streams finish or tells them why they do not."""

    def __init__(self, config: uvicorn.Config, api: Api, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._api = api
        self._on_ready = on_ready

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn would raise the signal again at the end, and the caller could not close the engine.
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        farewell = asyncio.get_running_loop().call_later(GRACE_S, self._end_requests)
        try:
            await super().shutdown(sockets)
        finally:
            farewell.cancel()
            self._api.threads.close()

    def _end_requests(self) -> None:
        self._api.threads.close()
        for reply in tuple(self._api.replies):
            reply.fail(Failed(shutting_down()))


def server(app: FastAPI, *, on_ready: Callable[[], None] = lambda: None, log_level: str = "info") -> Server:
    """A server that is not running yet."""
    verbose = log_level.lower() in ("debug", "trace")
    config = uvicorn.Config(
        app,
        # Fixed, so that the same code serves whatever else is installed.
        loop="asyncio",
        http=Connection,
        ws="none",
        lifespan="off",
        # The command line configures logging; uvicorn's own lines are of interest to its developers.
        log_config=None,
        log_level=log_level.lower() if verbose else "warning",
        access_log=verbose,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(GRACE_S + FAREWELL_S),
    )
    return Server(config, app.state.api, on_ready)


def serve(
    app: FastAPI, sock: socket.socket, *, on_ready: Callable[[], None] = lambda: None, log_level: str = "info"
) -> None:
    """Serves on a bound socket until SIGINT or SIGTERM. `on_ready` is called once requests are accepted."""
    try:
        server(app, on_ready=on_ready, log_level=log_level).run(sockets=[sock])
    except OSError as e:
        raise ConfigError(f"cannot listen on {url_of(sock)}: {e}; choose another --port") from e
