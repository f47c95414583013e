"""An answer's text, as it comes, into thoughts, content and tool calls.

The pieces joined are the same however the text is cut, so a whole answer is `feed(text)` and `finish()`. What the
parts are is told in `thinking` and `calls`. No text raises, and none is lost but the form: the marks, and the
blank lines around thoughts and before calls.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from backburner.api.parsing.calls import CallSplitter
from backburner.api.parsing.identity import new_call_id
from backburner.api.parsing.markers import without_leading_blank_lines
from backburner.api.parsing.pieces import ContentDelta, Piece, ReasoningDelta
from backburner.api.parsing.thinking import Part, Thinking, ThinkingSplitter


class Parser:
    """Parses one answer.

    `thinking`: whether the prompt ended inside <think>. `splits_thinking`: False leaves thoughts, marks and all, in
    the content; calls in them are still no calls. `parses_calls`: tools were given and tool_choice is not none.
    `parallel`: False keeps only the first call.
    """

    def __init__(
        self,
        thinking: Thinking,
        *,
        splits_thinking: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
        parses_calls: bool = False,
        parallel: bool = True,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._splits_thinking = splits_thinking
        self._thinking = ThinkingSplitter(thinking, verbatim=not splits_thinking)
        self._calls = CallSplitter(tools, parallel=parallel, new_id=new_id) if parses_calls else None
        self._thoughts: list[Part] = []

    @property
    def thinks(self) -> bool:
        """Whether what comes next may still be a thought."""
        return self._thinking.thinks

    @property
    def calls_sent(self) -> int:
        """Tool calls so far; with one or more the finish_reason is tool_calls."""
        return self._calls.sent if self._calls else 0

    def feed(self, text: str) -> list[Piece]:
        return self._pieces(self._thinking.feed(text))

    def finish(self, cut: bool = False) -> list[Piece]:
        """The withheld rest.

        A model that ends by itself without closing its thoughts has put its answer there: they are content as well,
        after the reasoning that a stream has shown already. One that was `cut`, by max_tokens or a stop string, was
        still thinking.
        """
        thinks = self.thinks
        pieces = self._pieces(self._thinking.finish())
        if thinks and self._splits_thinking and not cut:
            thought = "".join(part.text for part in self._thoughts)
            answer = without_leading_blank_lines(thought)
            if answer.strip():
                # What was never closed is one stretch of the answer.
                pieces.append(ContentDelta(answer, self._thoughts[0].start + len(thought) - len(answer)))
        if self._calls:
            pieces += self._calls.finish()
        return pieces

    def _pieces(self, parts: Sequence[Part]) -> list[Piece]:
        pieces: list[Piece] = []
        for part in parts:
            if part.kind == "answer" and self._calls:
                pieces += self._calls.feed(part.text, part.start)
            elif part.kind == "thought" and self._splits_thinking:
                self._thoughts.append(part)
                pieces.append(ReasoningDelta(part.text))
            else:
                pieces.append(ContentDelta(part.text, part.start))
        return pieces
