"""Where a rendered reply begins: after the prompt, and after what stands for a thought."""

from __future__ import annotations

import re

from mrs.tools.atoms import atoms_of, common_start, is_tag

#: A mark around thoughts, whatever its family.
_THOUGHT = re.compile(r"<[^<>]*think[^<>]*>|\[/?THINK\]", re.IGNORECASE)


def after_prompt(text: str, prompt: str) -> str:
    """What a model would have written of `text`, whose thought may be other than the prompt's."""
    start = len(common_start(text, prompt))
    end_of_prompt = atoms_of(prompt)
    for count in range(len(end_of_prompt), 1, -1):
        ending = end_of_prompt[-count:]
        position = text.find("".join(ending))
        if position >= 0 and any(map(is_tag, ending)):
            return text[max(start, position + len("".join(ending))) :]
    return text[start:]


def after_thought(text: str) -> str:
    """The text after the last mark around thoughts."""
    marks = list(_THOUGHT.finditer(text))
    return text[marks[-1].end() :] if marks else text
