"""Writes Lark grammars for llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from mrs.grammar.source import JSON_FORM, Grammars
from mrs.text.tokenizer import Tokenizer

#: Any text of ordinary tokens, as a terminal and as a regular expression.
ANY_TEXT = r"/(?s:.*)/"


class LarkGrammar:
    """Rules that grow; control tokens of `tokenizer` in texts become tokens of the grammar."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._controls = tokenizer.control_ids
        longest_first = sorted(self._controls, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        #: Whether keywords of JSON schemas that cannot be enforced are left out.
        self.is_lenient = True
        self._rules: list[str] = []
        self._schemas: Grammars = []

    @property
    def grammars(self) -> Grammars:
        """The grammars in llguidance's form, of which the first is the start."""
        return [{"lark_grammar": "\n".join(self._rules)}, *self._schemas]

    def rule(self, name: str, body: str) -> None:
        self._rules.append(f"{name}: {body}")

    def has_rule(self, name: str) -> bool:
        return any(rule.startswith(f"{name}:") for rule in self._rules)

    def letters(self, text: str) -> str:
        """A text in the body of a rule, which is never a control token."""
        return json.dumps(text, ensure_ascii=False)

    def text(self, text: str) -> str:
        """A text in the body of a rule, with control tokens by their ids."""
        parts, start = [], 0
        for match in self._control.finditer(text):
            parts += [text[start : match.start()], match[0]]
            start = match.end()
        parts.append(text[start:])
        spelled = (
            self.letters(part) if number % 2 == 0 else f"<[{self._controls[part]}]>"
            for number, part in enumerate(parts)
            if part
        )
        return " ".join(spelled) or '""'

    def json(
        self, schema: Mapping[str, Any], *, separators: tuple[str, str] | None = (", ", ": ")
    ) -> str:
        """JSON of a schema in the body of a rule; without `separators` any white space is right."""
        name = f"json_{len(self._schemas)}"
        form: dict[str, Any] = {"whitespace_flexible": True, "lenient": self.is_lenient}
        if separators is not None:
            item, key = separators
            form |= {**JSON_FORM, "item_separator": item, "key_separator": key}
        self._schemas.append({"name": name, "json_schema": {**schema, "x-guidance": form}})
        return f"@{name}"

    def until(self, mark: str) -> str:
        """Any text up to and with the first `mark`, in the body of a rule."""
        if control := self._control.search(mark):
            before, rest = mark[: control.start()], mark[control.start() :]
            return f"/(?s:.*){pattern_of(before)}/ {self.text(rest)}"
        name = f"until_{len(self._rules)}"
        self.rule(f"{name}[lazy]", f"/(?s:.*){pattern_of(mark)}/")
        return name

    def starts_with_control(self, text: str) -> str | None:
        """The control token at the start of a text."""
        match = self._control.match(text)
        return match[0] if match else None


def pattern_of(text: str) -> str:
    """A regular expression for a text, inside slashes."""
    return re.escape(text).replace("\\\n", "\\n").replace("/", r"\/")
