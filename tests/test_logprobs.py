"""Log probabilities: the model's own numbers, of exactly the tokens whose text was sent."""

from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backburner.engine.engine import Engine
from backburner.engine.logprobs import TokenReport
from backburner.engine.request import (
    Delta,
    Failed,
    Finished,
    GenerationRequest,
    Grammar,
    PromptLogprobs,
    SamplingParams,
    TokenLogprob,
)
from backburner.engine.sampling import Score, scores
from backburner.engine.text import TextStream, token_bytes
from tests.host import chat, host, tiny, tokenizer
from tests.test_engine import Collector, ScriptedRunner
from tests.test_engine import request as scripted

GENERATED = SamplingParams(temperature=2.0, seed=3)
END = min(tokenizer().eos_token_ids)


def log_softmax(rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(np.float64)
    rows = rows - rows.max(axis=-1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True))


def bytes_of(token: int) -> bytes:
    return token_bytes(tokenizer(), token)


def test_scores_are_the_log_softmax_and_its_best() -> None:
    rows = np.random.default_rng(0).normal(size=(4, 500)).astype(np.float32) * 5
    rows[2, [7, 300, 40]] = 30.0  # equal ones, by their ids
    expected = log_softmax(rows)
    for count in (0, 1, 5, 500, 1000):
        got = scores(mx.array(rows), [3, 4, 40, 6], count)
        for row, token, score in zip(expected, [3, 4, 40, 6], got, strict=True):
            assert abs(score.logprob - row[token]) < 1e-5
            order = np.argsort(-row, kind="stable")[:count]
            if count <= 5:  # further down float64 tells apart what fp32 cannot
                assert [t for t, _ in score.top] == order.tolist()
            assert len({t for t, _ in score.top}) == min(count, 500)
            assert np.allclose([p for _, p in score.top], row[order], atol=1e-5)


def test_the_bytes_of_tokens_join_to_the_text() -> None:
    text = "Grüße, 世界! 🙂\n\tdef f(x):  return x<|im_end|></think>\r\n\u200d�"
    tokens = tokenizer().encode(text, add_special_tokens=False)
    assert b"".join(map(bytes_of, tokens)) == text.encode()


def told(
    tokens: list[int], stop: tuple[str, ...] = (), *, ended: bool = True
) -> tuple[str, list[TokenLogprob]]:
    """Text and reported tokens as the engine makes them."""
    text, report = TextStream(tokenizer(), stop), TokenReport(bytes_of)
    sent, found = "", []
    for i, token in enumerate(tokens):
        piece = text.push(token)
        report.add(token, Score(-float(i), ()))
        if not text.stopped and not ended and i == len(tokens) - 1:
            piece += text.finish()
        sent += piece
        found += report.sent(piece)
        assert len(b"".join(t.bytes for t in found)) <= len(sent.encode())
        if text.stopped:
            break
    if ended and not text.stopped:
        piece = text.finish()
        sent += piece
        report.add(END, Score(-float(len(tokens)), ()), end=True)
        found += report.sent(piece)
    found += report.finish(text.stopped)
    assert text.stopped or len(found) == len(tokens) + ended
    return sent, found


@settings(max_examples=150, deadline=None)
@given(
    st.text(alphabet="ab e\u00e9\u4e16\U0001f642\n.", max_size=24),
    st.lists(st.text(alphabet="ab e\u00e9\U0001f642.", min_size=1, max_size=4), max_size=3),
    st.booleans(),
    st.integers(0, 30),
)
def test_reported_tokens_join_to_what_was_sent(text: str, stop: list[str], ended: bool, cut: int) -> None:
    tokens = tokenizer().encode(text, add_special_tokens=False)[: cut or None]
    sent, found = told(tokens, tuple(stop), ended=ended)
    assert b"".join(t.bytes for t in found) == sent.encode()
    assert [t.token_id for t in found] == [*tokens, END][: len(found)]
    assert [t.logprob for t in found] == [-float(i) for i in range(len(found))]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(3, 3065), max_size=30), st.booleans())
def test_broken_characters_lose_no_token(tokens: list[int], ended: bool) -> None:
    # mlx-lm's detokenizer writes byte 0 as another character.
    tokens = [t for t in tokens if 0 not in bytes_of(t)]
    sent, found = told(tokens, ended=ended)
    joined = b"".join(t.bytes for t in found)
    assert joined.decode(errors="replace") == sent
    assert b"".join(map(bytes_of, tokens)).startswith(joined)


def test_a_token_that_a_stop_string_cuts_is_reported_as_far_as_it_was_sent() -> None:
    tokens = tokenizer().encode("one hundred two", add_special_tokens=False)
    sent, found = told(tokens, ("dred",))
    assert sent == "one hun"
    assert b"".join(t.bytes for t in found) == b"one hun"


def test_a_stop_string_right_behind_a_broken_character_is_not_reported() -> None:
    broken = tokenizer().encode("🙂", add_special_tokens=False)[0]
    sent, found = told([broken, *tokenizer().encode("x", add_special_tokens=False)], ("x",))
    assert sent == "\ufffd"
    assert [t.bytes for t in found] == [bytes_of(broken)]


def test_pieces_of_a_character_come_together_each_with_its_own_bytes() -> None:
    tokens = tokenizer().encode("🙂", add_special_tokens=False)
    assert len(tokens) > 1
    _, [*found, end] = told(tokens)
    assert [t.bytes for t in found] == [bytes_of(t) for t in tokens]
    assert all("\ufffd" in t.text for t in found)
    assert (end.token_id, end.bytes) == (END, b"")


@pytest.mark.parametrize("ended", [False, True])
def test_a_cut_character_is_not_sent_and_its_tokens_are_reported_without_bytes(ended: bool) -> None:
    tokens = tokenizer().encode("🙂", add_special_tokens=False)[:-1]
    sent, found = told(tokens, ended=ended)
    assert sent == ""
    assert [(t.token_id, t.text, t.bytes) for t in found] == [(t, "", b"") for t in tokens + [END] * ended]
    assert [t.logprob for t in found] == [-float(i) for i in range(len(found))]


def test_the_engine_reports_an_end_token_without_text_and_nothing_unasked() -> None:
    engine = Engine(ScriptedRunner, "scripted")
    engine.start()
    try:
        asked, unasked = Collector(), Collector()
        engine.submit(scripted(logprobs=0), asked)
        engine.submit(scripted(), unasked)
        assert isinstance(asked.result(), Finished)
        assert isinstance(unasked.result(), Finished)
    finally:
        engine.close()
    found = [t for e in asked.events if isinstance(e, Delta) for t in e.logprobs]
    assert [t.text for t in found] == ["1 ", "2 ", "3 ", "4 ", "5 ", ""]
    assert [t.bytes for t in found] == [b"1 ", b"2 ", b"3 ", b"4 ", b"5 ", b""]
    assert [t.logprob for t in found] == [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]
    assert not any(e.logprobs for e in unasked.events if isinstance(e, Delta))


@pytest.fixture(scope="module")
def real():
    engine = Engine(lambda: host(sessions=2).__enter__(), "tiny")
    engine.start()
    yield engine
    engine.close()


def events(engine: Engine, prompt: list[int], **kwargs) -> Collector:
    got = Collector()
    engine.submit(GenerationRequest("r", tuple(prompt), **kwargs), got)
    got.result()
    return got


def reference(tokens: list[int]) -> np.ndarray:
    """Log probabilities behind each token, by mlx-lm's own forward pass."""
    model = tiny().model
    with host() as runner:
        state = runner.start(GenerationRequest("r", tuple(tokens), 1))
        residual = model.run_layers(model.embed(mx.array(tokens)), state.caches, 0, len(model.layers))
        return log_softmax(np.array(model.logits(residual).astype(mx.float32)))


def test_an_answers_log_probabilities_are_the_models_own_whatever_was_done_to_its_logits(real) -> None:
    prompt = chat("Tell me something.")
    sampling = SamplingParams(
        temperature=2.0, seed=3, top_k=500, repetition_penalty=1.5, logit_bias=((40, 2.0),)
    )
    got = events(real, prompt, max_tokens=20, sampling=sampling, logprobs=3, ignore_eos=True)
    rows = reference(prompt + got.tokens)[len(prompt) - 1 :]
    found = [t for e in got.events if isinstance(e, Delta) for t in e.logprobs]
    assert b"".join(t.bytes for t in found) == got.text.encode()
    assert len(found) >= 15
    for token, row in zip(found, rows, strict=False):
        assert abs(token.logprob - row[token.token_id]) < 1e-3
        assert [t for t, *_ in token.top] == np.argsort(-row)[:3].tolist()
        assert all(a[3] >= b[3] for a, b in pairwise(token.top))
        assert all(raw == bytes_of(t) for t, _, raw, _ in token.top)


def test_a_prompts_log_probabilities_cover_all_of_it_and_read_all_of_it(real) -> None:
    prompt = chat("Hello! " * 250)[:600]
    events(real, prompt, max_tokens=1)
    got = events(real, prompt, max_tokens=2, logprobs=2, prompt_logprobs=True)
    found = [t for e in got.events if isinstance(e, PromptLogprobs) for t in e.tokens]
    assert [t.token_id for t in found] == prompt
    assert b"".join(t.bytes for t in found).decode() == tokenizer().decode(prompt)
    assert found[0].logprob is None
    rows = reference(prompt)
    for token, row in zip(found[1:], rows, strict=False):
        assert abs(token.logprob - row[token.token_id]) < 1e-3
        assert len(token.top) == 2
    assert got.result().cached_tokens == 0
    warm = events(real, prompt, max_tokens=2)
    assert warm.tokens == got.tokens
    assert warm.result().cached_tokens == 512, "what was read for it is kept like any other"


def test_an_impossible_grammar_fails_its_request_only(real) -> None:
    failed = events(real, chat("Hi"), max_tokens=4, grammar=Grammar('{"type": 5}')).result()
    assert isinstance(failed, Failed)
    assert failed.error.code == "invalid_grammar"
    assert isinstance(events(real, chat("Hi"), max_tokens=4).result(), Finished)
