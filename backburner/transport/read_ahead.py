"""A host's requests, read by a thread of their own while a reply to one before goes out."""

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from backburner.transport.messages import Message
from backburner.transport.peer import Peer

# What a host may have in flight at once (docs/protocol.md, rule 8) is less than 50 MB for a 27B-class model: two
# Attends of 3.1 MB, four AttendAheads or FoldOntos of at most 6.3 MB, three pieces of a page, four chunks of a tail.
READ_AHEAD_BYTES = 64 * 1024 * 1024

# A reply that takes longer waits for the host to read. Most are out in tens of microseconds.
SLOW_REPLY_S = 0.002

# How often the thread looks whether a reply is slow, and for how long after one it goes on looking.
LOOK_S, AWAKE_S = 0.005, 1.0


class ReadAhead:
    """Receives on while a reply waits for the host to read it.

    A partial of several MB does not fit into the buffers of a socket, least of all of the Unix sockets that usbmuxd
    hands out (208 KiB). While it goes out the host may be sending a question as large, and it reads nothing until that
    is out: if the worker did not read either, both would wait for their deadlines.

    Otherwise the thread that answers reads for itself: a request that another thread hands over costs 70 us more on two
    cores (an Attend of one token 117 us, not 45).
    """

    def __init__(self, peer: Peer, idle_s: float, bytes_max: int = READ_AHEAD_BYTES) -> None:
        """idle_s: for how long the host may say nothing. bytes_max: of waiting requests; one may always wait."""
        self._peer = peer
        self._idle_s = idle_s
        self._bytes_max = bytes_max
        self._changed = threading.Condition()  # guards all below
        self._waiting: deque[tuple[tuple[int, Message], int]] = deque()
        self._bytes = 0
        self._ended: BaseException | None = None
        self._closed = False
        self._taken = False  # the other thread reads
        self._replying_s: float | None = None  # since when
        self._asleep = False  # the other thread looks at nothing
        threading.Thread(target=self._run, name=f"reads {peer.peer}", daemon=True).start()

    def receive(self) -> tuple[int, Message]:
        """The next request and its tag; if none is left, raises what ended the reading, as Peer.receive does."""
        with self._changed:
            while not self._waiting and self._taken:
                self._changed.wait()
            if self._waiting:
                request, size = self._waiting.popleft()
                self._bytes -= size
                self._changed.notify_all()
                return request
            if self._ended is not None:
                raise self._ended
        return self._peer.receive(self._idle_s)

    @contextmanager
    def replying(self) -> Iterator[None]:
        """While this thread sends."""
        self._replying_s = time.monotonic()
        if self._asleep:
            with self._changed:
                self._changed.notify_all()
        try:
            yield
        finally:
            self._replying_s = None

    def close(self) -> None:
        """Lets the thread end; it does when the peer is closed, too."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        while self._slow_reply():
            try:
                while self._replying_s is not None and not self._closed:
                    self._read_one()
            except BaseException as error:
                # Without its frames, which hold the link and its descriptor.
                self._ended = error.with_traceback(None)
            with self._changed:
                self._taken = False
                self._changed.notify_all()
            if self._ended is not None:
                return

    def _slow_reply(self) -> bool:
        """Waits for one, and takes the reading over. False at the end."""
        last_s = time.monotonic()
        with self._changed:
            while not self._closed:
                since_s, now_s = self._replying_s, time.monotonic()
                if since_s is not None:
                    last_s = now_s
                    if now_s - since_s >= SLOW_REPLY_S:
                        self._taken = True
                        return True
                self._asleep = now_s - last_s > AWAKE_S
                # A reply that began before it saw this flag is seen here.
                if self._replying_s is None or not self._asleep:
                    self._changed.wait(None if self._asleep else LOOK_S)
                self._asleep = False
        return False

    def _read_one(self) -> None:
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
