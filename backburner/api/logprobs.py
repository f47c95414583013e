"""Log probabilities as chat and text completions show them."""

from collections.abc import Iterable, Sequence
from typing import Any

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


class TextLogprobs:
    """The parallel lists of a text completion's logprobs; offsets count characters of the choice's text."""

    def __init__(self) -> None:
        self._length = 0

    def block(self, tokens: Sequence[TokenLogprob], top: int) -> dict[str, Any]:
        """The lists for the next tokens."""
        offsets = []
        for token in tokens:
            offsets.append(self._length)
            self._length += len(token.text)
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
