"""Thoughts in replies: what models write around them, and how the text of a reply has them."""

from __future__ import annotations

from dataclasses import dataclass, replace

#: Around the thought at the start of a reply's text, whatever marks the model uses.
OPEN, CLOSE = "<think>", "</think>"


@dataclass(frozen=True)
class ThoughtMarks:
    """What a model writes around a thought: `open`, the thought, `before`, `close`, `after`.

    `before` is white space, and so is `after` in most formats; some have the header of the answer
    there. `plain` is what stands before an answer without a thought, if anything.
    """

    open: str = OPEN
    close: str = CLOSE
    before: str = "\n"
    after: str = "\n\n"
    plain: str = ""

    @property
    def is_usual(self) -> bool:
        """Whether the text of replies has the same marks, and no others."""
        return (self.open, self.close) == (OPEN, CLOSE) and not self.headers

    @property
    def headers(self) -> set[str]:
        """What may stand before an answer, and is no part of it."""
        return {self.plain.strip(), self.after.strip()} - {""}

    @property
    def before_calls(self) -> ThoughtMarks:
        """The same before a call, where the marks of an answer do not stand."""
        space = len(self.after) - len(self.after.lstrip())
        return replace(self, after=self.after[:space], plain="")


#: The marks of most models.
USUAL = ThoughtMarks()


def split_thought(reply: str) -> tuple[str | None, str]:
    """The thought at the start of a reply and its answer; the thought is None without tags.

    The answer is empty if the reply was stopped during its thought.
    """
    start = reply.lstrip()
    if not start.startswith(OPEN):
        return None, reply
    thought, _, answer = start.removeprefix(OPEN).partition(CLOSE)
    return thought.strip("\n"), answer.lstrip("\n")
