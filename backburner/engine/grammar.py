"""Keeps an answer to JSON or to calls of tools: llguidance says which tokens may come next."""

from typing import Any

import mlx.core as mx
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from backburner.engine.request import Grammar
from backburner.engine.text import token_bytes
from backburner.errors import GrammarError

# Compiling takes up to 6 us a character. OpenAI takes 120,000 characters of names and values.
MAX_SCHEMA_CHARACTERS = 200_000

# Without a bound a model that hesitates writes blanks to the end of the context.
JSON_OPTIONS: Any = {"whitespace_pattern": r"( |\n{1,2}[ \t]{0,20})", "lenient": False}

# Tokens of tiny, but of no Qwen.
TEXT_TAGS = frozenset(("</parameter>", "</function>"))

ANY_OBJECT = '{"type": "object"}'

# llguidance's own bounds: 20 ms of lexer building, 15 ms a token. Its errors would show the parser's whole state.
LIMITS = LLParserLimits(verbose_errors=False)


def check_grammar(json_schema: str) -> None:
    """Raises GrammarError if no answer can be kept to this schema. Takes a fraction of a second at most."""
    _check(_matcher(LLTokenizer("byte"), _from_schema(json_schema)))


def check_rules(rules: str) -> None:
    """The same of a grammar in Lark form, if it names no tokens of a model."""
    _check(_matcher(LLTokenizer("byte"), _from_rules(rules)))


def _check(matcher: LLMatcher) -> None:
    matcher.compute_bitmask()
    if matcher.is_error():
        raise GrammarError(_reason(matcher))


def _from_schema(json_schema: str) -> str:
    if len(json_schema) > MAX_SCHEMA_CHARACTERS:
        raise GrammarError(
            f"The JSON schema has {len(json_schema)} characters; at most {MAX_SCHEMA_CHARACTERS} are supported."
        )
    try:
        return str(LLMatcher.grammar_from_json_schema(json_schema, overrides=JSON_OPTIONS))
    except ValueError as e:
        raise GrammarError(f"The JSON schema cannot be read: {e}") from e


def _from_rules(rules: str) -> str:
    try:
        return str(LLMatcher.grammar_from_lark(rules))
    except ValueError as e:
        raise GrammarError(f"The grammar cannot be read: {e}") from e


def _matcher(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    matcher = LLMatcher(tokenizer, grammar, limits=LIMITS, log_level=0)
    if matcher.is_error():
        raise GrammarError(_reason(matcher))
    return matcher


def _reason(matcher: LLMatcher) -> str:
    return f"Answers cannot be kept to this schema: {matcher.get_error().splitlines()[0][:500]}"


class _Tokens:
    """A vocabulary whose closing tags are text, in the form that llguidance's TokenizerWrapper takes."""

    bos_token_id = None

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = min(tokenizer.eos_token_ids)
        self.tokens = [token_bytes(tokenizer, token) for token in range(vocab_size)]
        self.special_token_ids = [
            token
            for text, token in tokenizer.get_added_vocab().items()
            if text not in TEXT_TAGS and text.startswith("<") and text.endswith(">")
        ]

    def __call__(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))


def _vocabulary(tokenizer: Any, vocab_size: int) -> LLTokenizer:
    """llguidance takes each added token that looks like <this> for one that no text spells: right for <tool_call>,
    which grammars name, and wrong for closing tags, which end texts."""
    ends = sorted(tokenizer.eos_token_ids)
    if TEXT_TAGS.isdisjoint(tokenizer.get_added_vocab()):
        return LLTokenizer(tokenizer.backend_tokenizer.to_str(), n_vocab=vocab_size, eos_token=ends)
    return LLTokenizer(TokenizerWrapper(_Tokens(tokenizer, vocab_size)), n_vocab=vocab_size, eos_token=ends)


class Grammars:
    """Makes guides for one model's tokens. The vocabulary is prepared when the first is asked for: up to a second."""

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._vocabulary: LLTokenizer | None = None

    def guide(self, grammar: Grammar | None) -> "GrammarGuide | None":
        """Raises GrammarError."""
        if grammar is None:
            return None
        if self._vocabulary is None:
            self._vocabulary = _vocabulary(self._tokenizer, self._vocab_size)
        if grammar.rules is not None:
            text = _from_rules(grammar.rules)
        else:
            text = _from_schema(ANY_OBJECT if grammar.json_schema is None else grammar.json_schema)
        return GrammarGuide(_matcher(self._vocabulary, text), self._tokenizer, self._vocab_size, grammar)


class GrammarGuide:
    """Implements `sampling.Guide`. Where the answer is complete, only end tokens are left."""

    def __init__(self, matcher: LLMatcher, tokenizer: Any, vocab_size: int, grammar: Grammar) -> None:
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._after = (grammar.after or "").encode()
        self._opening = grammar.opening
        self._free = bytearray()  # the newest bytes before the grammar starts
        self._started = not self._after
        ends = np.zeros(vocab_size, bool)
        ends[list(tokenizer.eos_token_ids)] = True
        self._ends = mx.array(ends)

    def mask(self, logits: mx.array) -> mx.array:
        # Before its start too: an answer that ended there would have nothing of what is asked for.
        allowed = self._allowed() if self._started else ~self._ends
        return mx.where(allowed, logits, mx.array(-mx.inf, logits.dtype))

    def push(self, token: int) -> None:
        self._started = self._started or token == self._opening
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
        if forced := self._matcher.compute_ff_tokens():
            # What has to come, comes in the tokens that the model has learned to read it in.
            only = np.zeros(self._ends.size, bool)
            only[forced[0]] = True
            return mx.array(only)
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise GrammarError(_reason(self._matcher))
        return mx.array(np.unpackbits(bits, bitorder="little")[: self._ends.size].astype(bool))
