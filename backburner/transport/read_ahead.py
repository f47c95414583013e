"""A host's requests, read by a thread of their own while those before are answered."""

import threading
from collections import deque

from backburner.transport.messages import Message
from backburner.transport.peer import Peer

# What a host may have in flight at once (docs/protocol.md, rule 8) is less than 50 MB for a 27B-class model: two
# Attends of 3.1 MB, four AttendAheads or FoldOntos of at most 6.3 MB, three pieces of a page, four chunks of a tail.
READ_AHEAD_BYTES = 64 * 1024 * 1024


class ReadAhead:
    """Receives on, whatever the thread that answers is doing.

    A partial of several MB does not fit into the buffers of a socket, least of all of the Unix sockets that usbmuxd
    hands out (208 KiB). While it goes out the host may be sending a question as large, and it reads nothing until that
    is out: if the worker did not read either, both would wait for their deadlines.
    """

    def __init__(self, peer: Peer, idle_s: float, bytes_max: int = READ_AHEAD_BYTES) -> None:
        """idle_s: for how long the host may say nothing. bytes_max: of waiting requests; one may always wait."""
        self._peer = peer
        self._idle_s = idle_s
        self._bytes_max = bytes_max
        self._changed = threading.Condition()
        self._waiting: deque[tuple[tuple[int, Message], int]] = deque()
        self._bytes = 0
        self._ended: BaseException | None = None
        self._closed = False
        threading.Thread(target=self._read, name=f"reads {peer.peer}", daemon=True).start()

    def receive(self) -> tuple[int, Message]:
        """The next request and its tag; if none is left, raises what ended the reading, as Peer.receive does."""
        with self._changed:
            while not self._waiting and self._ended is None:
                self._changed.wait()
            if not self._waiting:
                assert self._ended is not None
                raise self._ended
            request, size = self._waiting.popleft()
            self._bytes -= size
            self._changed.notify_all()
        return request

    def close(self) -> None:
        """Lets the thread end; it does when the peer is closed, too."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _read(self) -> None:
        try:
            while True:
                before = self._peer.bytes_received
                request = self._peer.receive(self._idle_s)
                # What came with it of small ones that follow counts for it.
                size = self._peer.bytes_received - before
                with self._changed:
                    self._waiting.append((request, size))
                    self._bytes += size
                    self._changed.notify_all()
                    while self._bytes >= self._bytes_max and len(self._waiting) > 1 and not self._closed:
                        self._changed.wait()
                    if self._closed:
                        return
        except BaseException as error:
            with self._changed:
                # Without its frames, which hold the link and its descriptor.
                self._ended = error.with_traceback(None)
                self._changed.notify_all()
