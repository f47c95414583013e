"""The byte-level BPE of `tiny`: Qwen's split, but a word is the same tokens after a space, a quote or a line break.

Qwen's split glues the space (or a quote) to the word, and BPE would then learn merges that cross the seam, so that
copying a word from the middle of a sentence to the start of a line means mapping one token to another; a small model
learns that badly. Here merges are learnt from text that is split more finely, so none of them crosses from a space or
a mark into letters; only the most frequent function words, which are hardly ever a value, get a token with their
space. What is saved carries Qwen's own split and normalizer, because transformers puts them into every tokenizer of a
`qwen3_5` model, whatever its file says: so the ids are the same for every reader.
"""

import argparse
import json
import random
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from .conversation import corpus_text
from .split import Draw

VOCAB = 3072
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# One token each, but text: a client reads them.
MARKS = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<function=", "</function>", "<parameter=", "</parameter>"),
)
# BPE merges wherever it can, also at the start of a longer word: so of two letters only those that begin with a vowel,
# as made-up words do not.
FUNCTION_WORDS = (
    *(
        "the",
        "this",
        "that",
        "these",
        "your",
        "his",
        "her",
        "its",
        "our",
        "their",
        "from",
        "with",
        "was",
        "have",
    ),
    *(
        "has",
        "does",
        "did",
        "can",
        "will",
        "would",
        "should",
        "not",
        "and",
        "but",
        "for",
        "when",
        "while",
        "which",
    ),
    *(
        "what",
        "where",
        "how",
        "they",
        "you",
        "there",
        "about",
        "into",
        "are",
        "is",
        "of",
        "in",
        "it",
        "on",
        "at",
    ),
    *("or", "am", "as", "an", "if", "behind", "near", "know", "only", "some", "something", "every"),
)
# The split of Qwen3.5's tokenizer.
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The same, but letters alone: merges that are learnt from it never cross into a word.
LEARNING_SPLIT = QWEN_SPLIT.replace(r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r"[\p{L}\p{M}]+")
SPACE = "Ġ"  # how a byte-level vocabulary spells a space
CORPUS_CONVERSATIONS = 6000


def _byte_level(split: str) -> pre_tokenizers.Sequence:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _learnt(seed: int, split: str, vocab_size: int, conversations: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _byte_level(split)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )

    def texts():
        for i in range(conversations):
            text = corpus_text(Draw(random.Random(f"tokenizer-{seed}-{i}")))
            for mark in (*SPECIAL, *MARKS):
                text = text.replace(mark, "\n")
            yield text

    tokenizer.train_from_iterator(texts(), trainer)
    return tokenizer


def _with_spaced_words(tokenizer: Tokenizer, words: tuple[str, ...]) -> Tokenizer:
    """Adds `Ġword` for whole words, as the last and so the weakest merges."""
    state = json.loads(tokenizer.to_str())
    vocab, merges = state["model"]["vocab"], state["model"]["merges"]
    for word in words:
        if word not in vocab:
            raise SystemExit(f"{word!r} is no token of the corpus: take it from FUNCTION_WORDS")
        merges.append([SPACE, word])
        vocab[SPACE + word] = len(vocab)
    return Tokenizer.from_str(json.dumps(state))


def train_tokenizer(seed: int, conversations: int = CORPUS_CONVERSATIONS) -> Tokenizer:
    learnt = _learnt(seed, LEARNING_SPLIT, VOCAB - len(MARKS) - len(FUNCTION_WORDS), conversations)
    tokenizer = _with_spaced_words(learnt, FUNCTION_WORDS)
    tokenizer.pre_tokenizer = _byte_level(QWEN_SPLIT)
    tokenizer.add_tokens(list(MARKS))
    if tokenizer.get_vocab_size() != VOCAB:
        raise SystemExit(f"{tokenizer.get_vocab_size()} tokens instead of {VOCAB}: the corpus is too small")
    return tokenizer


def letter_pieces(tokenizer: Tokenizer) -> list[str]:
    """Tokens that are plain letters: what random words are glued from."""
    return sorted(t for t in tokenizer.get_vocab() if t.isascii() and t.isalpha())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="where tokenizer.json goes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compare", action="store_true", help="print characters per token, and Qwen's own")
    args = parser.parse_args()
    if args.compare:
        sample = [corpus_text(Draw(random.Random(f"sample-{i}"))) for i in range(200)]
        for name, tokenizer in (
            ("ours", train_tokenizer(args.seed, 1500)),
            ("as Qwen learns", _learnt(args.seed, QWEN_SPLIT, VOCAB, 1500)),
        ):
            count = sum(len(e.ids) for e in tokenizer.encode_batch(sample))
            print(f"{name}: {sum(map(len, sample)) / count:.2f} characters per token")
        return
    args.out.parent.mkdir(parents=True, exist_ok=True)
    train_tokenizer(args.seed).save(str(args.out))


if __name__ == "__main__":
    main()
