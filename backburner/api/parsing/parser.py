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

    Models draft calls in their thoughts; to make those too would run them twice. But Qwen3.5 at times ends an answer
    with its call and has not closed the thoughts before it. So from their first call on thoughts are held back: it is a
    draft if they are closed behind it.
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
        self._drafts = CallSplitter(tools, parallel=parallel, new_id=new_id) if parses_calls else None
        self._drafted: list[Piece] = []  # of the thoughts, from their first call on
        self._held = ""  # the end of the thoughts that was not sent

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

        A model that ends by itself without closing its thoughts has put its answer there: the calls in them and what
        follows these. Without any, all of them are content as well, after the reasoning that a stream has shown
        already. One that was `cut`, by max_tokens or a stop string, was still thinking.
        """
        unclosed = self.thinks and self._splits_thinking and not cut
        pieces = self._pieces(self._thinking.finish())
        if unclosed and self._drafts:
            pieces += self._before_drafts(self._drafts.finish())
            if self._drafts.sent:
                self._calls = self._drafts
                return pieces + self._drafted
        pieces += self._rest_of_thoughts()
        if unclosed:
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
            if part.kind == "thought" and self._splits_thinking:
                pieces += self._thought(part)
                continue
            pieces += self._rest_of_thoughts()
            if part.kind == "answer" and self._calls:
                pieces += self._calls.feed(part.text, part.start)
            else:
                pieces.append(ContentDelta(part.text, part.start))
        return pieces

    def _thought(self, part: Part) -> list[Piece]:
        self._thoughts.append(part)
        self._held += part.text
        if self._drafts is None:
            return self._rest_of_thoughts()
        return self._before_drafts(self._drafts.feed(part.text, part.start))

    def _before_drafts(self, found: Sequence[Piece]) -> list[Piece]:
        """What thoughts say before the first call that they hold; the rest of what was found in them is kept."""
        pieces: list[Piece] = []
        for piece in found:
            if isinstance(piece, ContentDelta) and not self._drafted:
                self._held = self._held[len(piece.text) :]
                pieces.append(ReasoningDelta(piece.text))
            else:
                self._drafted.append(piece)
        return pieces

    def _rest_of_thoughts(self) -> list[Piece]:
        rest, self._held = self._held, ""
        return [ReasoningDelta(rest)] if rest else []
