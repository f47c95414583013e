"""The worker's end of a link: one request after another in, replies out in any order."""

import time

from backburner.errors import LinkClosed, LinkTimeout, ProtocolError
from backburner.transport.channel import Channel
from backburner.transport.connection import CONNECTION_BODY_MAX, NO_TAG, TIMEOUT_S, Connection
from backburner.transport.messages import REPLIES, Error, GetState, Message

# An error's text is for a person; a longer one would not fit into a str of the meta.
ERROR_TEXT_MAX = 1000


class Peer(Connection):
    """Requests of one host. One thread receives; any thread may reply."""

    def __init__(
        self, channel: Channel, timeout_s: float = TIMEOUT_S, body_max: int = CONNECTION_BODY_MAX
    ) -> None:
        super().__init__(channel, timeout_s, body_max)
        self._unanswered: set[int] = set()  # tags of requests that the host may be waiting for

    @property
    def silent_s(self) -> float:
        """For how long the host has said nothing, though it had nothing to wait for. Any thread."""
        return 0.0 if self._unanswered else time.monotonic() - self._moved_s

    def receive(self, timeout_s: float | None = None) -> tuple[int, Message]:
        """The next request and its tag.

        LinkTimeout if none begins within `timeout_s`; the link stays open then, so look at the stop flag and
        come back. A request that begins and does not end closes it. LinkClosed when the host is gone.
        """
        return self._receive(self.timeout_s if timeout_s is None else timeout_s, self.timeout_s)

    def receive_first(self, timeout_s: float) -> tuple[int, Message]:
        """The first request and its tag. All of it has to come within `timeout_s`: who is not known to be a host may
        not keep its place with a byte."""
        return self._receive(timeout_s, None)

    def _receive(self, timeout_s: float, begun_s: float | None) -> tuple[int, Message]:
        try:
            if self._failure is not None:
                raise LinkClosed(f"the link to {self.peer} is closed: {self._failure}")
            tag, message = self._read(time.monotonic() + timeout_s, begun_s)
            if tag == NO_TAG or type(message) not in REPLIES:
                raise ProtocolError(f"{type(message).__name__} with tag {tag} is not a request")
        except LinkTimeout as error:
            if not self._reader.between_frames:
                self._fail(error)
            raise
        except ProtocolError as error:
            self._say_last(Error(error.code, str(error)[:ERROR_TEXT_MAX]))
            self._fail(error)
            raise
        except BaseException as error:
            self._fail(error)
            raise
        # A GetState is answered when the host has sent a chunk: until then the worker waits for the host.
        if type(message) is not GetState:
            self._unanswered.add(tag)
        return tag, message

    def reply(self, tag: int, message: Message) -> None:
        """Answers the request with that tag."""
        self._send(message, tag)
        self._unanswered.discard(tag)

    def reply_error(self, tag: int, code: str, text: str) -> None:
        """Answers with an Error."""
        self.reply(tag, error_reply(code, text))


def error_reply(code: str, text: str) -> Error:
    """An Error of a length that fits; the codes are those of `errors.REMOTE_ERRORS`."""
    return Error(code, text[:ERROR_TEXT_MAX])
