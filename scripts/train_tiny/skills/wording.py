"""The same question in other words: lead-ins, synonyms, slips of the fingers, missing case and punctuation."""

# ruff: noqa: E501
# Tables of wordings: a broken line would hide how they differ.

import re
from collections.abc import Sequence

from ..split import Draw

LEADS = (
    "Hey, ", "Hi, ", "Hello, ", "So ", "Please tell me: ", "Tell me, ", "Can you tell me: ", "I wonder: ", "Quick question: ", "Question: ", "One question: ", "I want to know: ",
    "I would like to know: ", "Well, ", "Ok, ", "Okay, ", "And ", "But ", "Now, ", "Sorry, ", "Excuse me, ", "One more thing: ", "Hm, ", "By the way, ", "Just curious: ", "Could you tell me: ",
    "Do you know: ", "Please, ", "Next question: ", "Thanks. ", "Great. ", "Explain: ", "I am new here. ", "Another one: ", "Let me ask: ", "Hey there, ", "Actually, ",
)  # fmt: skip
TAILS = (
    "?",
    "??",
    " please?",
    " please",
    ", please.",
    " thanks",
    " exactly?",
    " really?",
    " then?",
    " by the way?",
    " again?",
    " ?",
    "?!",
    " in short?",
    " in one sentence?",
    " for me?",
)
SYNONYMS = {
    "phone": ("iPhone", "mobile", "smartphone", "cell phone"), "iphone": ("phone", "mobile"), "computer": ("Mac", "laptop", "PC", "machine"), "mac": ("computer", "laptop", "machine"),
    "cable": ("cord", "wire", "USB cable", "lead"), "fast": ("quick", "speedy"), "quick": ("fast",), "slow": ("sluggish",), "big": ("large", "huge"), "large": ("big",), "small": ("little",),
    "need": ("require", "have to have"), "needs": ("requires",), "use": ("need", "work with"), "start": ("launch", "run", "begin", "boot"), "run": ("start", "launch", "use"), "stop": ("quit", "end", "shut down"),
    "works": ("functions", "operates"), "work": ("function", "operate"), "happens": ("occurs", "goes on"), "purpose": ("point", "goal", "aim"), "happen": ("occur",), "made": ("built", "written", "created"),
    "wrote": ("made", "created", "built"), "show": ("tell", "give"), "explain": ("describe", "tell me about"), "describe": ("explain",), "program": ("software", "tool", "app", "application"), "software": ("program", "tool"),
    "supported": ("allowed", "possible", "available"), "install": ("set up", "get"), "free": ("gratis", "at no cost"), "safe": ("secure",), "private": ("confidential",), "long": ("lengthy",),
    "answers": ("replies", "responses", "results"), "answer": ("reply", "response", "result"), "device": ("gadget", "thing"), "text": ("document", "prompt"), "memory": ("RAM",), "tell": ("show",),
    "correct": ("right",), "same": ("identical", "equal"), "lose": ("drop",), "breaks": ("fails", "dies"), "kept": ("stored", "held"), "stored": ("kept", "saved"), "pull": ("unplug", "remove", "take out"), "unplug": ("pull out", "disconnect", "remove"),
}  # fmt: skip


def _slip(d: Draw, text: str) -> str:
    """One letter doubled, dropped or swapped, not in the first place of a word."""
    spots = [i for i in range(1, len(text) - 1) if text[i - 1 : i + 2].isalpha()]
    if not spots:
        return text
    i = d.rng.choice(spots)
    kind = d.rng.randrange(3)
    if kind == 0:
        return text[:i] + text[i] + text[i:]
    if kind == 1:
        return text[:i] + text[i + 1 :]
    return text[:i] + text[i + 1] + text[i] + text[i + 2 :]


def _synonym(d: Draw, text: str) -> str:
    known = [m for m in re.finditer(r"[A-Za-z]+", text) if m[0].lower() in SYNONYMS]
    if not known:
        return text
    m = d.rng.choice(known)
    return text[: m.start()] + d.rng.choice(SYNONYMS[m[0].lower()]) + text[m.end() :]


# Said before a question without saying anything about it.
CONTEXTS = (
    "I am curious. ", "I am a beginner. ", "I need this for work. ", "I did not understand that. ", "Let me ask something. ", "This may be a silly question. ", "My friend told me about this. ", "I just found this. ", "I am not sure. ",
    "I have been wondering. ", "Before I begin: ", "Just to be sure: ", "For my own understanding: ", "My boss wants to know: ", "Another thing. ", "Last question: ", "I could not find it. ", "Simple question. ", "You seem to know this. ", "Listen. ",
)  # fmt: skip
FILLERS = (
    "actually",
    "really",
    "just",
    "exactly",
    "even",
    "maybe",
    "perhaps",
    "usually",
    "ever",
    "also",
    "still",
    "then",
    "now",
    "again",
    "basically",
    "normally",
    "simply",
)
_SMALL = frozenset(
    [
        "a",
        "an",
        "the",
        "is",
        "are",
        "was",
        "be",
        "do",
        "does",
        "did",
        "can",
        "could",
        "will",
        "would",
        "should",
        "i",
        "you",
        "it",
        "to",
        "of",
        "for",
        "in",
        "on",
        "with",
        "my",
        "me",
        "this",
        "that",
        "there",
        "have",
        "has",
        "what",
        "which",
        "how",
    ]
)


def _telegram(d: Draw, text: str) -> str:
    """Content words only, as people type into a search box."""
    kept = [word for word in text.split(" ") if word.lower().strip("?.!,") not in _SMALL or d.chance(0.15)]
    return " ".join(kept) if len(kept) > 1 else text


def _filled(d: Draw, text: str) -> str:
    words = text.split(" ")
    words.insert(d.rng.randint(1, len(words) - 1) if len(words) > 1 else 0, d.any(FILLERS))
    return " ".join(words)


def reworded(d: Draw, text: str) -> str:
    """A freer form of a question of general knowledge: any part of it may change."""
    for _ in range(d.rng.choice((0, 1, 1, 2))):
        text = _synonym(d, text)
    if d.chance(0.12):
        text = _telegram(d, text)
    if d.chance(0.1):
        text = _filled(d, text)
    if d.chance(0.08):
        text = d.wording(CONTEXTS) + text
    if d.chance(0.2) and text[-1] in "?.":
        text = text[:-1] + d.wording(TAILS)
    if d.chance(0.3):
        lead = d.wording(LEADS)
        keep = text[0] == "I" or text[:2].isupper() or text.startswith("Backburner")
        text = lead + (text if keep or lead.endswith(". ") else text[0].lower() + text[1:])
    return roughened(d, text, 0.12)


def roughened(d: Draw, text: str, slips: float = 0.0) -> str:
    """Case and punctuation as people leave them out."""
    if d.chance(0.3):
        text = text.lower()
    if d.chance(0.3):
        text = text.rstrip("?.! ")
    if d.chance(slips):
        text = _slip(d, text)
    return text or "?"


# Before a request of any kind.
OPENINGS = (
    "Hey, ", "Hi, ", "Hello, ", "Ok, ", "Okay, ", "So, ", "Well, ", "Now, ", "And now: ", "Next: ", "One more: ", "Another one: ", "Please: ", "Task: ", "My question: ", "Here is a task: ", "Thanks. ", "Great. ", "Good. ", "Fine. ",
    "I have a request. ", "A small task: ", "By the way, ", "Actually, ", "First, ", "Then, ", "Again: ", "Also: ", "Quick one: ", "Listen: ", "Dear model, ", "Tiny, ", "Hey tiny, ", "Assistant: ", "Hi there! ", "Hello! ", "Good day. ",
    "Thank you. ", "Perfect. ", "Please help me. ", "I need your help. ", "Next question. ", "Sorry, ", "Excuse me, ", "If you can, ", "Let us go on. ", "One thing: ", "Simple one: ", "Try this: ", "Attention: ",
)  # fmt: skip


def phrased(d: Draw, forms: Sequence[str]) -> str:
    """A form, still with its slots, in a wording of this side: with an opening or none, with or without capital and point."""
    while True:
        form, opening = d.form(forms), d.any(OPENINGS) if d.chance(0.45) else ""
        if (opening.endswith((", ", ": ")) and d.chance(0.7)) or d.chance(0.12):
            form = form[0].lower() + form[1:]
        if d.chance(0.12) and not form.endswith("}"):
            form = form.rstrip("?.! ")
        if d.may_say(opening + form):
            return opening + form
