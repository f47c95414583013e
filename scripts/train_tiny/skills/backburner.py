"""Questions about Backburner: an intent's own questions, frames around its topics, and bare keywords."""

# ruff: noqa: E501
# Tables of wordings: a broken line would hide how they differ.

from ..split import Draw
from .faq import INTENTS
from .turns import Turn
from .wording import reworded

FRAMES = (
    "What about {t}?", "Tell me about {t}.", "Explain {t}.", "{t}?", "{t}", "What can you say about {t}?", "I have a question about {t}.", "Give me information on {t}.", "Info about {t}?", "Say something about {t}.", "What should I know about {t}?",
    "Can you explain {t}?", "I want to know more about {t}.", "How is it with {t}?", "Details about {t}?", "And {t}?", "Describe {t}.", "What do you know about {t}?", "Could you explain {t} to me?", "I do not understand {t}.", "Help me with {t}.", "Something about {t} please",
    "Please explain {t}.", "Let us talk about {t}.", "What is the story with {t}?", "Question about {t}", "In Backburner, what about {t}?", "backburner {t}", "{t} in Backburner?", "{t} backburner", "What does Backburner say about {t}?", "How does Backburner handle {t}?",
)  # fmt: skip
_SUBJECTS = (
    "Backburner",
    "it",
    "this",
    "the server",
    "this program",
    "the app",
    "this software",
    "the program",
    "the tool",
)


def _other_subject(d: Draw, question: str) -> str:
    """`it` and `Backburner` stand for each other, where that leaves a sentence."""
    for word in (" Backburner ", " it ", " Backburner?", " it?"):
        if word in question and d.chance(0.35):
            return question.replace(word, word[0] + d.any(_SUBJECTS) + word[-1], 1)
    return question


def asked(d: Draw, name: str) -> str:
    _, questions, topics = INTENTS[name]
    r = d.rng.random()
    if r < 0.68:
        return reworded(d, _other_subject(d, d.wording(questions)))
    if r < 0.94:
        text = d.wording(FRAMES).format(t=d.any(topics))
        return reworded(d, text[0].upper() + text[1:] if d.chance(0.5) else text)
    # Two wordings in one message, as people who start again do.
    first, second = d.wording(questions), d.wording(questions)
    return reworded(d, first.rstrip("?.") + d.any(("? ", ", ", ". I mean: ", " - ")) + second)


def question(d: Draw, name: str | None = None) -> Turn:
    name = name or d.rng.choice(tuple(INTENTS))
    answer = INTENTS[name][0]
    return Turn(asked(d, name), answer, f"The user asks about {INTENTS[name][2][0]}.", keys=[answer])
