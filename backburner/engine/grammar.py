"""Keeps an answer to JSON: llguidance says which tokens may come next."""

from typing import Any

import mlx.core as mx
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from backburner.engine.request import Grammar
from backburner.engine.text import token_bytes
from backburner.errors import GrammarError

# Compiling takes up to 6 us a character. OpenAI takes 120,000 characters of names and values.
MAX_SCHEMA_CHARACTERS = 200_000

# Without a bound a model that hesitates writes blanks to the end of the context.
JSON_OPTIONS: Any = {"whitespace_pattern": r"( |\n{1,2}[ \t]{0,20})", "lenient": False}

# llguidance's own bounds: 20 ms of lexer building, 15 ms a token. Its errors would show the parser's whole state.
LIMITS = LLParserLimits(verbose_errors=False)


def check_grammar(json_schema: str) -> None:
    """Raises GrammarError if no answer can be kept to this schema. Takes a fraction of a second at most."""
    matcher = _matcher(LLTokenizer("byte"), json_schema)
    matcher.compute_bitmask()
    if matcher.is_error():
        raise GrammarError(_reason(matcher))


def _matcher(tokenizer: LLTokenizer, json_schema: str) -> LLMatcher:
    if len(json_schema) > MAX_SCHEMA_CHARACTERS:
        raise GrammarError(
            f"The JSON schema has {len(json_schema)} characters; at most {MAX_SCHEMA_CHARACTERS} are supported."
        )
    try:
        grammar = LLMatcher.grammar_from_json_schema(json_schema, overrides=JSON_OPTIONS)
    except ValueError as e:
        raise GrammarError(f"The JSON schema cannot be read: {e}") from e
    matcher = LLMatcher(tokenizer, grammar, limits=LIMITS, log_level=0)
    if matcher.is_error():
        raise GrammarError(_reason(matcher))
    return matcher


def _reason(matcher: LLMatcher) -> str:
    return f"Answers cannot be kept to this JSON schema: {matcher.get_error().splitlines()[0][:500]}"


class Grammars:
    """Makes guides for one model's tokens. The vocabulary is prepared when the first is asked for: up to a second."""

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._vocabulary: LLTokenizer | None = None

    def guide(self, grammar: Grammar | None) -> "JsonGuide | None":
        """Raises GrammarError."""
        if grammar is None:
            return None
        if self._vocabulary is None:
            self._vocabulary = LLTokenizer(
                self._tokenizer.backend_tokenizer.to_str(),
                n_vocab=self._vocab_size,
                eos_token=sorted(self._tokenizer.eos_token_ids),
            )
        schema = '{"type": "object"}' if grammar.json_schema is None else grammar.json_schema
        return JsonGuide(_matcher(self._vocabulary, schema), self._tokenizer, self._vocab_size, grammar.after)


class JsonGuide:
    """Implements `sampling.Guide`. Where the JSON is complete, only end tokens are left."""

    def __init__(self, matcher: LLMatcher, tokenizer: Any, vocab_size: int, after: str | None) -> None:
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._after = (after or "").encode()
        self._free = bytearray()  # the newest bytes before the grammar starts
        self._started = not self._after
        ends = np.zeros(vocab_size, bool)
        ends[list(tokenizer.eos_token_ids)] = True
        self._ends = mx.array(ends)

    def mask(self, logits: mx.array) -> mx.array:
        # Before its start too: an answer that ended there would have no JSON.
        allowed = self._allowed() if self._started else ~self._ends
        return mx.where(allowed, logits, mx.array(-mx.inf, logits.dtype))

    def push(self, token: int) -> None:
        if self._started:
            if not self._matcher.is_stopped() and not self._matcher.consume_token(token):
                raise GrammarError(_reason(self._matcher))
            return
        self._free += token_bytes(self._tokenizer, token)
        self._started = self._after in self._free
        del self._free[: -len(self._after)]

    def _allowed(self) -> mx.array:
        if self._matcher.is_stopped() and not self._matcher.is_error():
            return self._ends
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise GrammarError(_reason(self._matcher))
        return mx.array(np.unpackbits(bits, bitorder="little")[: self._ends.size].astype(bool))
