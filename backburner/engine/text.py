"""From tokens to text that may be sent: whole characters only, cut at the first stop string."""

from collections.abc import Sequence
from typing import Any, Protocol


class Detokenizer(Protocol):
    """The part of mlx-lm's StreamingDetokenizer that is used here."""

    @property
    def last_segment(self) -> str: ...

    def add_token(self, token: int) -> Any: ...

    def finalize(self) -> Any: ...


class DetokenizerSource(Protocol):
    """The part of mlx-lm's TokenizerWrapper that is used here; reading `detokenizer` gives fresh state."""

    @property
    def detokenizer(self) -> Detokenizer: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...


def token_bytes(tokenizer: Any, token: int) -> bytes:
    """The bytes of one token of a byte-level BPE, as Qwen's are; of a piece of a character too."""
    if token in tokenizer.added_tokens_decoder:
        return str(tokenizer.added_tokens_decoder[token].content).encode()
    piece = tokenizer.convert_ids_to_tokens(token)
    # Vocabularies are padded. What the detokenizer writes for such a token is "!".
    return b"!" if piece is None else b"".join(map(_byte_of, piece))


def _byte_of(character: str) -> bytes:
    byte = _BYTES.get(character)
    return character.encode() if byte is None else bytes((byte,))


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's: printable bytes stand for themselves, the others for characters from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(0x100 + i): b for i, b in enumerate(others)}


_BYTES = _byte_alphabet()


class StopMatcher:
    """Cuts a text that arrives in pieces at the stop string that starts first, however the text is split."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(dict.fromkeys(s for s in stop if s))
        self._first_characters = frozenset(s[0] for s in self._stop)
        self._longest = max(map(len, self._stop), default=0)
        self._held = ""  # the shortest tail that may still become the first match
        self.matched: str | None = None

    @property
    def stopped(self) -> bool:
        return self.matched is not None

    def feed(self, piece: str) -> str:
        """What of the text so far has become safe to send."""
        if self.stopped:
            return ""
        if not self._stop:
            return piece
        text = self._held + piece
        match = self._match(text)
        ambiguous = self._ambiguous(text)
        # A match has to wait for a longer stop string that began before it, or the cut would depend
        # on how the text was split into tokens.
        if match <= ambiguous and match < len(text):
            return self._cut(text, match)
        self._held = text[ambiguous:]
        return text[:ambiguous]

    def flush(self) -> str:
        """The withheld tail, now that nothing can follow it."""
        match = self._match(self._held)
        if match < len(self._held):
            return self._cut(self._held, match)
        tail, self._held = self._held, ""
        return tail

    def _cut(self, text: str, end: int) -> str:
        self._held = ""
        # Of those that start here the shortest: a text that comes by characters stops at it first.
        self.matched = min((s for s in self._stop if text.startswith(s, end)), key=len)
        return text[:end]

    def _match(self, text: str) -> int:
        """Where the first complete stop string starts; len(text) if there is none."""
        return min((i for i in map(text.find, self._stop) if i >= 0), default=len(text))

    def _ambiguous(self, text: str) -> int:
        """Where the longest tail starts that is a proper prefix of a stop string; len(text) if none."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start] in self._first_characters:
                tail = text[start:]
                if any(len(s) > len(tail) and s.startswith(tail) for s in self._stop):
                    return start
        return len(text)


class TextStream:
    """The text of one answer. The pieces joined never depend on how tokens split the text."""

    def __init__(self, tokenizer: DetokenizerSource, stop: Sequence[str] = ()) -> None:
        self._detokenizer = tokenizer.detokenizer
        # mlx-lm's BPE and SPM detokenizers drop a space at the very start of the text, which would glue
        # a completion to its prompt. A letter goes in first and is thrown away.
        for token in tokenizer.encode("a", add_special_tokens=False):
            self._detokenizer.add_token(token)
        _ = self._detokenizer.last_segment
        self._matcher = StopMatcher(stop)
        self._finished = False

    @property
    def stopped(self) -> bool:
        """A stop string has ended the answer; everything after it is dropped."""
        return self._matcher.stopped

    @property
    def stopped_by(self) -> str | None:
        """The stop string that has ended the answer."""
        return self._matcher.matched

    def push(self, token_id: int) -> str:
        """The text that became safe to send; empty while a character or a stop string is undecided."""
        if self.stopped:
            return ""
        self._detokenizer.add_token(token_id)
        return self._matcher.feed(self._detokenizer.last_segment)

    def finish(self) -> str:
        """The withheld rest, at the end of the answer. May find that a stop string had been met."""
        if self.stopped or self._finished:
            return ""
        self._finished = True
        self._detokenizer.finalize()
        # The detokenizer only withholds what ends in U+FFFD (or a space): a character cut in the middle.
        tail = self._detokenizer.last_segment.rstrip("\ufffd")
        return self._matcher.feed(tail) + self._matcher.flush()
