"""What both ends of a link share: sending and reading whole messages over a channel, and how that ends."""

import contextlib
import time
from threading import Lock

from backburner.errors import LinkClosed, TransportError
from backburner.transport.channel import Channel
from backburner.transport.codec import decode, encode
from backburner.transport.frames import FrameReader
from backburner.transport.messages import Bye, Error, Message

# Long for a reply: the slowest, a 512-token Attend over 64 pages, takes well under a second on a phone. Short
# for a user whose worker is gone.
TIMEOUT_S = 10.0

# The largest body today is one layer's recurrent state or 512 rows of activations, some 10 MB.
CONNECTION_BODY_MAX = 256 * 1024 * 1024

# How long closing may wait to say Bye.
FAREWELL_S = 0.2

NO_TAG = 0  # of messages that answer nothing: Bye, and an Error about the link itself


class Connection:
    """One end of a link. Any thread may send; one thread at a time may read."""

    def __init__(
        self, channel: Channel, timeout_s: float = TIMEOUT_S, body_max: int = CONNECTION_BODY_MAX
    ) -> None:
        self.timeout_s = timeout_s
        self.bytes_sent = 0
        self.bytes_received = 0
        self._channel = channel
        self._reader = FrameReader(body_max)
        self._send_lock = Lock()
        self._moved_s = time.monotonic()  # when bytes last came or went
        # Why the link ended. Text: an exception would hold its frames, and they the link and its descriptor.
        self._failure: str | None = None

    @property
    def alive(self) -> bool:
        """Whether the link can still be used."""
        return self._failure is None

    @property
    def failure(self) -> str | None:
        """Why the link ended."""
        return self._failure

    def give_up(self, why: str) -> None:
        """Ends the link because of what the other end did."""
        self._fail(LinkClosed(why))

    @property
    def peer(self) -> str:
        """Who is at the other end."""
        return self._channel.peer

    def close(self) -> None:
        """Says Bye if that is possible at once, and ends the link. May be called twice, from any thread."""
        if self.alive:
            self._say_last(Bye())
        self._fail(LinkClosed("this side closed the link"))

    def _send(self, message: Message, tag: int) -> None:
        parts = encode(message, tag)
        try:
            with self._send_lock:
                if self._failure is not None:
                    raise LinkClosed(f"the link to {self.peer} is closed: {self._failure}")
                self.bytes_sent += self._channel.send(parts, time.monotonic() + self.timeout_s)
                self._moved_s = time.monotonic()
        except BaseException as error:
            # Part of a frame may be out: nothing that follows could be understood.
            self._fail(error)
            raise

    def _read(self, deadline: float, begun_s: float | None = None) -> tuple[int, Message]:
        """The next message and its tag. With `begun_s`, a frame that has begun gets that long instead."""
        reader = self._reader
        while (frame := reader.next_frame()) is None:
            if begun_s is not None and not reader.between_frames:
                deadline, begun_s = time.monotonic() + begun_s, None
            count = self._channel.recv_into(reader.space(), deadline)
            if not count:
                where = "" if reader.between_frames else " in the middle of a frame"
                raise LinkClosed(f"{self.peer} closed the link{where}")
            reader.filled(count)
            self.bytes_received += count
            self._moved_s = time.monotonic()
        message = decode(*frame)
        tag = frame.header.tag
        if tag == NO_TAG:
            if type(message) is Bye:
                raise LinkClosed(f"{self.peer} said goodbye")
            if type(message) is Error:
                raise LinkClosed(f"{self.peer} closed the link: {message.code}: {message.message}")
        return tag, message

    def _say_last(self, message: Message) -> None:
        """Sends if no other thread is in the middle of sending, and never raises."""
        if self._send_lock.acquire(timeout=FAREWELL_S):
            try:
                with contextlib.suppress(TransportError):
                    self._channel.send(encode(message, NO_TAG), time.monotonic() + FAREWELL_S)
            finally:
                self._send_lock.release()

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = str(error) or type(error).__name__
        self._channel.close()
