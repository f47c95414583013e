"""Page keys: equal for equal content, different for anything else, and stable for the wire."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from backburner.kv.keys import page_key


def page_keys(fingerprint: bytes, tokens: Sequence[int], page_tokens: int) -> list[bytes]:
    """The chain over all full pages, as a page table builds it."""
    keys: list[bytes] = []
    for start in range(0, len(tokens) - page_tokens + 1, page_tokens):
        keys.append(page_key(fingerprint, keys[-1] if keys else b"", tokens[start : start + page_tokens]))
    return keys


token_lists = st.lists(st.integers(0, 250_000), min_size=8, max_size=40)


@given(token_lists, st.integers(1, 8))
def test_a_prefix_has_the_same_keys(tokens: list[int], page_tokens: int) -> None:
    keys = page_keys(b"model", tokens, page_tokens)
    assert len(keys) == len(tokens) // page_tokens
    shorter = page_keys(b"model", tokens[: page_tokens * (len(keys) - 1)], page_tokens)
    assert keys[: len(shorter)] == shorter
    assert len(set(keys)) == len(keys)


@given(token_lists, st.integers(0, 7))
def test_one_changed_token_changes_all_keys_from_there(tokens: list[int], at: int) -> None:
    changed = list(tokens)
    changed[at] += 1
    before, after = page_keys(b"model", tokens, 4), page_keys(b"model", changed, 4)
    assert before[: at // 4] == after[: at // 4]
    assert all(a != b for a, b in zip(before[at // 4 :], after[at // 4 :], strict=True))


def test_a_salt_makes_a_key_of_its_own() -> None:
    keys = {page_key(b"m", b"", range(4), salt) for salt in (b"", b"a", b"b")}
    assert len(keys) == 3


def test_another_model_has_other_keys() -> None:
    assert page_keys(b"a", range(8), 4) != page_keys(b"b", range(8), 4)


def test_the_key_of_a_known_page_never_changes() -> None:
    """Workers keep pages across restarts of the host, so this value is part of the protocol."""
    key = page_key(b"fingerprint", b"", [1, 2, 3])
    assert len(key) == 32
    assert key.hex() == "ad991308b8a53a778d5f2f165b069edb82d9043f7863a2371cae59e2756b53f7"
