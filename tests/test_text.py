"""Text of an answer: whole characters, stop strings across tokens, and equality with the unstreamed text."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import load

import backburner
from backburner.engine.text import StopMatcher, TextStream

TINY = Path(backburner.__file__).parent / "model" / "tiny"


@cache
def tokenizer() -> Any:
    return load(TINY)


def encode(text: str) -> list[int]:
    return list(tokenizer().encode(text, add_special_tokens=False))


def stream(tokens: list[int], stop: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    text = TextStream(tokenizer(), stop)
    pieces = []
    for token in tokens:
        pieces.append(text.push(token))
        if text.stopped:
            break
    pieces.append(text.finish())
    return pieces, text.stopped


def feed(pieces: list[str], stop: tuple[str, ...]) -> tuple[list[str], bool]:
    matcher = StopMatcher(stop)
    sent = [matcher.feed(piece) for piece in pieces]
    sent.append(matcher.flush())
    return sent, matcher.stopped


def cut(text: str, stop: tuple[str, ...]) -> str:
    """The oracle: the whole text, cut at the stop string that starts first."""
    return text[: min((text.find(s) for s in stop if s and s in text), default=len(text))]


def test_an_emoji_over_several_tokens_comes_out_once_and_whole() -> None:
    tokens = encode("🙂")
    assert len(tokens) > 1
    pieces, _ = stream(tokens)
    assert [p for p in pieces if p] == ["🙂"]


def test_cjk_text_is_never_sent_in_halves() -> None:
    pieces, _ = stream(encode("日本語のテキスト"))
    assert "".join(pieces) == "日本語のテキスト"
    assert not any("\ufffd" in p for p in pieces)


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_an_answer_cut_inside_a_character_ends_before_it(kept: int) -> None:
    pieces, _ = stream(encode("so ") + encode("🙂")[:kept])
    assert "".join(pieces) == "so "


def test_invalid_bytes_inside_the_text_do_not_hold_up_what_follows() -> None:
    pieces, _ = stream([*encode("🙂")[:2], *encode("ok")])
    assert "".join(pieces) == "\ufffdok"


def test_the_first_space_of_an_answer_is_kept() -> None:
    pieces, _ = stream(encode(" hello world"))
    assert "".join(pieces) == " hello world"


def test_a_trailing_space_is_kept() -> None:
    assert "".join(stream(encode("the "))[0]) == "the "


def test_two_streams_of_one_tokenizer_do_not_mix() -> None:
    one, two = TextStream(tokenizer()), TextStream(tokenizer())
    pairs = zip(encode("日本"), encode("語の"), strict=True)
    pieces = [(one.push(a), two.push(b)) for a, b in pairs]
    assert "".join(a for a, _ in pieces) + one.finish() == "日本"
    assert "".join(b for _, b in pieces) + two.finish() == "語の"


def test_a_stop_string_across_tokens_is_withheld_and_cut() -> None:
    pieces, stopped = stream(encode("ABCDEFGHIJKLM"), ("DEFGHIJ",))
    assert "".join(pieces) == "ABC"
    assert stopped


def test_a_near_miss_is_released_in_full() -> None:
    matcher = StopMatcher(("DEFGHIJ",))
    assert [matcher.feed(c) for c in "CDEFGHI"] == ["C", "", "", "", "", "", ""]
    assert matcher.feed("X") == "DEFGHIX"
    assert not matcher.stopped


def test_a_near_miss_that_begins_again_keeps_only_the_ambiguous_tail() -> None:
    matcher = StopMatcher(("abab!",))
    assert matcher.feed("aba") == ""
    assert matcher.feed("b") == ""
    assert matcher.feed("a") == "ab"
    assert matcher.feed("b!") == ""
    assert matcher.stopped


def test_an_unfinished_stop_string_at_the_end_is_sent() -> None:
    assert "".join(stream(encode("ABCDEF"), ("DEFGHIJ",))[0]) == "ABCDEF"


def test_the_match_that_starts_first_wins_even_if_it_is_complete_later() -> None:
    assert feed(["xab", "c", "d"], ("bc", "abcd")) == (["x", "", "", ""], True)
    assert "".join(feed(["xab", "c", "!"], ("bc", "abcd"))[0]) == "xa"
    assert feed(["xabc"], ("bc", "abcd")) == (["x", "a"], True)


def test_empty_stop_strings_mean_nothing() -> None:
    assert feed(["abc"], ("",)) == (["abc", ""], False)


def test_more_than_sixty_four_stop_strings_work() -> None:
    stop = tuple(f"<{i}>" for i in range(100))
    pieces, stopped = stream(encode("a <9 b <97> c"), stop)
    assert "".join(pieces) == "a <9 b "
    assert stopped


def test_nothing_is_sent_after_a_stop() -> None:
    text = TextStream(tokenizer(), ("B",))
    sent = [text.push(t) for t in encode("ABC")]
    assert "".join(sent) == "A"
    assert text.push(encode("x")[0]) == ""
    assert text.finish() == ""


def test_finish_may_be_called_twice() -> None:
    text = TextStream(tokenizer())
    text.push(encode("the ")[0])
    text.finish()
    assert text.finish() == ""


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60), st.lists(st.text(min_size=1, max_size=4), max_size=5).map(tuple))
def test_joined_pieces_equal_the_cut_text_for_any_text(text: str, stop: tuple[str, ...]) -> None:
    # mlx-lm's streaming detokenizer shows a NUL byte as its BPE alias; real answers have none.
    text = text.replace("\0", "")
    tokens = encode(text)
    whole = tokenizer().decode(tokens).rstrip("\ufffd")
    pieces, stopped = stream(tokens, stop)
    assert "".join(pieces) == cut(whole, stop)
    assert stopped == (cut(whole, stop) != whole)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 3071), max_size=40))
def test_joined_pieces_equal_the_decoded_tokens_for_any_tokens(tokens: list[int]) -> None:
    nul = tokenizer().convert_tokens_to_ids("Ā")
    tokens = [t for t in tokens if t != nul]
    assert "".join(stream(tokens)[0]) == tokenizer().decode(tokens).rstrip("\ufffd")


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.text(alphabet="ab", max_size=5), max_size=8),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=70).map(tuple),
)
def test_a_cut_never_depends_on_how_the_text_is_split(pieces: list[str], stop: tuple[str, ...]) -> None:
    sent, stopped = feed(pieces, stop)
    whole = "".join(pieces)
    assert "".join(sent) == cut(whole, stop)
    assert stopped == (cut(whole, stop) != whole)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.text(alphabet="ab", max_size=5), max_size=8),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=9).map(tuple),
)
def test_the_stop_string_that_is_named_never_depends_on_how_the_text_is_split(
    pieces: list[str], stop: tuple[str, ...]
) -> None:
    whole = "".join(pieces)
    named = []
    for parts in (pieces, [whole], list(whole)):
        matcher = StopMatcher(stop)
        for part in parts:
            matcher.feed(part)
        matcher.flush()
        named.append(matcher.matched)
    at = len(cut(whole, stop))
    assert named == [min((s for s in stop if whole.startswith(s, at)), key=len, default=None)] * 3


@settings(max_examples=300, deadline=None)
@given(
    st.text(alphabet="abc", max_size=12),
    st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=4),
)
def test_exactly_the_ambiguous_tail_is_withheld(text: str, stop: list[str]) -> None:
    matcher = StopMatcher(stop)
    sent = ""
    for i, character in enumerate(text):
        sent += matcher.feed(character)
        if matcher.stopped:
            return
        seen = text[: i + 1]
        tails = [seen[k:] for k in range(len(seen)) if any(s.startswith(seen[k:]) for s in stop)]
        assert seen[len(sent) :] == max(tails, key=len, default="")
