"""Which tokens belong to the text that was sent: their log probabilities go out with it."""

import codecs
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from backburner.engine.request import TokenLogprob
from backburner.engine.sampling import Score


@dataclass(frozen=True, slots=True)
class _Waiting:
    token: int
    start: int  # of its bytes in the answer
    score: Score


class TokenReport:
    """Holds tokens back until their text is sent, and cuts the last one where the text is cut.

    So the reported bytes, joined, are always those of the text: with stop strings, near misses of them, and characters
    of several tokens. A token without text, which is the end token or part of a character that is never completed, is
    reported without bytes; one that a stop string cuts off is not.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._waiting: deque[_Waiting] = deque()
        self._bytes = bytearray()  # of the waiting tokens
        self._first = 0  # the position of its beginning in the answer
        self._length = 0  # of the answer, sent or not
        self._sent = 0  # up to here the text is sent
        self._ends: deque[int] = deque()  # where each character ends that is not sent
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int, score: Score, *, end: bool = False) -> None:
        """The next token of the answer. end: it is an end token, which has no text."""
        self._waiting.append(_Waiting(token, self._length, score))
        for byte in b"" if end else self._token_bytes(token):
            self._bytes.append(byte)
            before, self._length = self._length, self._length + 1
            characters = self._decoder.decode(bytes((byte,)))
            undecided = len(self._decoder.getstate()[0])
            # Of two at once, the first is what a broken sequence became: it ended before this byte.
            self._ends.extend([before] * (len(characters) - 1))
            if characters:
                self._ends.append(self._length - undecided)

    def sent(self, text: str) -> tuple[TokenLogprob, ...]:
        """The tokens that are complete now that this much more of the text was sent."""
        for _ in range(min(len(text), len(self._ends))):
            self._sent = self._ends.popleft()
        found: list[TokenLogprob] = []
        while self._waiting and self._end_of_first() <= self._sent:
            found.append(self._take(self._end_of_first()))
        return tuple(found)

    def finish(self, stopped: bool) -> tuple[TokenLogprob, ...]:
        """What was sent of a token that is cut by the end of the text. Then those of which nothing was sent, unless a
        stop string has cut them off (`stopped`)."""
        left = []
        while self._waiting and (not stopped or self._waiting[0].start < self._sent):
            left.append(self._take(self._sent))
        return tuple(left)

    def _end_of_first(self) -> int:
        return self._waiting[1].start if len(self._waiting) > 1 else self._length

    def _take(self, end: int) -> TokenLogprob:
        first = self._waiting.popleft()
        data = bytes(self._bytes[: end - self._first])
        del self._bytes[: end - self._first]
        self._first = end
        return labelled(first.token, data, first.score, self._token_bytes)


def labelled(
    token: int, data: bytes, score: Score | None, token_bytes: Callable[[int], bytes]
) -> TokenLogprob:
    """A score with the text of its tokens. `data`: the bytes to report for the token itself."""
    if score is None:
        return TokenLogprob(token, data.decode(errors="replace"), data, None)
    alternatives = ((other, token_bytes(other), logprob) for other, logprob in score.top)
    top = tuple((other, raw.decode(errors="replace"), raw, logprob) for other, raw, logprob in alternatives)
    return TokenLogprob(token, data.decode(errors="replace"), data, score.logprob, top)
