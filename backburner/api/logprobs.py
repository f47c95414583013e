"""Log probabilities as chat and text completions show them."""

import codecs
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from backburner.api.parsing.pieces import ContentDelta, Piece, ToolCallStart
from backburner.engine.request import TokenLogprob, TopLogprob

# JSON has no infinity; what OpenAI sends for a token that cannot come.
IMPOSSIBLE = -9999.0


def finite(logprob: float) -> float:
    return max(logprob, IMPOSSIBLE)


def chat_logprobs(tokens: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
    """The entries of choices[].logprobs.content."""
    return [
        {
            **_entry(t.text, t.bytes, t.logprob if t.logprob is not None else 0.0),
            "top_logprobs": [_entry(text, raw, logprob) for _, text, raw, logprob in t.top],
        }
        for t in tokens
    ]


def _entry(text: str, raw: bytes, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": finite(logprob), "bytes": list(raw)}


@dataclass(frozen=True, slots=True)
class _Placed:
    """A token, and for each of its bytes the character of the answer that it is a part of."""

    token: TokenLogprob
    characters: tuple[int, ...]


class ContentTokens:
    """Of an answer's tokens those of its content: neither of thoughts nor of calls, and no marks.

    The parser says where in the answer each piece of content stands. A token that is only partly content is cut, and
    one without bytes is left out, so the joined bytes are always those of the content.
    """

    def __init__(self) -> None:
        self._waiting: deque[_Placed] = deque()  # until it is known what they are
        self._content: deque[tuple[int, int]] = (
            deque()
        )  # stretches [start, stop), those behind all tokens dropped
        self._characters = 0  # of the tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, tokens: Iterable[TokenLogprob], pieces: Iterable[Piece]) -> Iterator["Scored"]:
        """What has come of the answer: its tokens, and what the parser made of them, each with the tokens that are
        to go with it. Tokens may come later than their text."""
        self._waiting += map(self._place, tokens)
        for piece in pieces:
            match piece:
                case ContentDelta(text, start):
                    self._content.append((start, start + len(text)))
                    yield piece, self._decided(self._content[-1][1])
                case ToolCallStart() if self._content:
                    # What was said before a call is over.
                    yield piece, self._decided(self._content[-1][1], begun=True)
                case _:
                    yield piece, []

    def finish(self) -> list[TokenLogprob]:
        """Those that were still waiting, now that nothing follows."""
        return self._decided(self._content[-1][1], begun=True) if self._content else []

    def _decided(self, stop: int, begun: bool = False) -> list[TokenLogprob]:
        """The tokens of content that end before a character; with `begun`, those that begin before it."""
        found = []
        while self._waiting and self._waiting[0].characters[0 if begun else -1] < stop:
            placed = self._waiting.popleft()
            while len(self._content) > 1 and self._content[0][1] <= placed.characters[0]:
                self._content.popleft()
            data = placed.token.bytes
            kept = bytes(byte for byte, c in zip(data, placed.characters, strict=True) if self._said(c))
            if kept:
                found.append(placed.token if kept == data else _cut(placed.token, kept))
        return found

    def _said(self, character: int) -> bool:
        return any(start <= character < stop for start, stop in self._content)

    def _place(self, token: TokenLogprob) -> _Placed:
        characters = []
        for byte in token.bytes:
            self._characters += len(self._decoder.decode(bytes((byte,))))
            # One that is not complete is the next.
            characters.append(self._characters - (not self._decoder.getstate()[0]))
        return _Placed(token, tuple(characters) or (self._characters,))


Scored = tuple[Piece, list[TokenLogprob]]


def _cut(token: TokenLogprob, data: bytes) -> TokenLogprob:
    return replace(token, bytes=data, text=data.decode(errors="replace"))


class TextLogprobs:
    """The parallel lists of a text completion's logprobs; offsets count characters of the choice's text."""

    def __init__(self) -> None:
        self._length = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def block(self, tokens: Sequence[TokenLogprob], top: int) -> dict[str, Any]:
        """The lists for the next tokens."""
        offsets = []
        for token in tokens:
            offsets.append(self._length)
            # A token's own text would count a character once for each token that has a part of it.
            self._length += len(self._decoder.decode(token.bytes))
        return {
            "tokens": [t.text for t in tokens],
            "token_logprobs": [None if t.logprob is None else finite(t.logprob) for t in tokens],
            "top_logprobs": [_by_text(t.top) if t.logprob is not None else None for t in tokens]
            if top
            else None,
            "text_offset": offsets,
        }


def _by_text(top: Sequence[TopLogprob]) -> dict[str, float]:
    # Of two tokens with the same text (parts of characters), the more probable one stays.
    return {text: finite(logprob) for _, text, _, logprob in reversed(top)}


def joined(blocks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Blocks of one choice as one."""
    whole: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": None, "text_offset": []}
    for block in blocks:
        for name, values in block.items():
            if values is not None:
                whole[name] = (whole[name] or []) + values
    return whole
