"""Log probabilities as chat and text completions show them."""

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from backburner.api.parsing.markers import THINK_CLOSE, THINK_OPEN, WHITESPACE
from backburner.engine.request import FinishReason, TokenLogprob, TopLogprob

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


class ContentTokens:
    """Of an answer's tokens those of its content, without thoughts: it follows `parsing.thinking` by bytes."""

    def __init__(self, thinks: bool) -> None:
        self._read = self._thought if thinks else self._start
        self._held: list[TokenLogprob] = []  # blanks, or the thought
        self._tail = b""  # of the thought

    def take(self, tokens: Iterable[TokenLogprob]) -> list[TokenLogprob]:
        return [found for token in tokens for found in self._read(token)]

    def finish(self, reason: FinishReason) -> list[TokenLogprob]:
        """Those of what is content only because nothing follows: blanks, or a thought that was never closed."""
        if self._read == self._start:
            return self._held
        return self._without_blank_lines() if self._read == self._thought and reason != "length" else []

    def _start(self, token: TokenLogprob) -> list[TokenLogprob]:
        self._held.append(token)
        text = _joined(self._held)
        said = text.lstrip(_BLANKS)
        if _THOUGHT_START.startswith(said):  # undecided, and at the end of the answer no thought
            return []
        held, self._held = self._held, []
        if not said.startswith(_THOUGHT_START):
            self._read = self._content
            return held
        self._held = list(_without(held, len(text) - len(said) + len(_THOUGHT_START)))
        self._read = self._thought
        return []

    def _thought(self, token: TokenLogprob) -> list[TokenLogprob]:
        self._held.append(token)
        before, mark, after = (self._tail + token.bytes).partition(_THOUGHT_END)
        self._tail = before[-len(_THOUGHT_END) :]
        if not mark:
            return []
        self._held = []
        self._read = self._gap
        return self._gap(_cut(token, after)) if after else []

    def _gap(self, token: TokenLogprob) -> list[TokenLogprob]:
        self._held.append(token)
        found = self._without_blank_lines()
        if found:
            self._held = []
            self._read = self._content
        return found

    def _without_blank_lines(self) -> list[TokenLogprob]:
        """The held tokens from the first line on that says something."""
        text = _joined(self._held)
        said = len(text) - len(text.lstrip(_BLANKS))
        return [] if said == len(text) else list(_without(self._held, text.rfind(b"\n", 0, said) + 1))

    def _content(self, token: TokenLogprob) -> list[TokenLogprob]:
        return [token]


_THOUGHT_START, _THOUGHT_END, _BLANKS = THINK_OPEN.encode(), THINK_CLOSE.encode(), WHITESPACE.encode()


def _joined(tokens: Iterable[TokenLogprob]) -> bytes:
    return b"".join(t.bytes for t in tokens)


def _without(tokens: Iterable[TokenLogprob], size: int) -> Iterable[TokenLogprob]:
    """Tokens without their first `size` bytes."""
    for token in tokens:
        if len(token.bytes) > size:
            yield _cut(token, token.bytes[size:])
        size = max(0, size - len(token.bytes))


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
