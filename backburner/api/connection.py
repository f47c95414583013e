"""uvicorn's connection, which ends when its client takes no data."""

import asyncio
import logging
import socket
import struct
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger(__name__)


class Connection(H11Protocol):
    """Watches what is written and not taken, whatever the answer: uvicorn, even when it closes, waits for ever."""

    _watch: asyncio.TimerHandle | None = None  # while something waits to be taken

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # or nobody would tell of the last 64 KiB

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look_later()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_watching()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def _look_later(self) -> None:
        app: Any = self.config.app
        stall_s = app.state.api.settings.write_stall_s
        self._watch = self.loop.call_later(stall_s, self._look, self.transport.get_write_buffer_size())

    def _look(self, waited: int) -> None:
        if self.transport.get_write_buffer_size() < waited:
            self._look_later()
            return
        log.warning("the client at %s:%d takes no data; its connection is ended", *(self.client or ("", 0)))
        # With a reset: the kernel, too, would keep what is left for a client that may never take it.
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
