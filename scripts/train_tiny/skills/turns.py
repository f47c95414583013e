"""What a skill returns: one exchange, as the messages it adds to a conversation."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Call:
    name: str
    arguments: dict[str, object]


@dataclass(slots=True)
class Turn:
    """A user's message, and the assistant's answer; with tools, a call, its result and the answer to that."""

    user: str
    answer: str  # with a call: what is said before it
    thought: str
    call: Call | None = None
    result: str | None = None
    result_answer: str = ""
    # What an evaluation looks for in the answer; empty: the whole answer.
    keys: list[str] = field(default_factory=list)
    # The answer in pieces where a grammar gives some of it; True for what the model itself has to say.
    given: list[tuple[str, bool]] = field(default_factory=list)
