"""The tokens of a model that transcribes with times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from mrs.errors import NotReadable
from mrs.families.vision.qwen3_asr import LANGUAGES

Task = Literal["transcribe", "translate"]
#: Newer and older name of the token for a window without speech.
_NO_SPEECH = ("<|nospeech|>", "<|nocaptions|>")


class HasTokens(Protocol):
    """The fields of `mrs.text.tokenizer.Tokenizer` that are read here."""

    @property
    def added_ids(self) -> Mapping[str, int]: ...


@dataclass(frozen=True)
class SpeechTokens:
    """Ids of tokens; those of text come before `end`, and those of times from `first_time` on.

    A window's reply begins with a token of `languages`, by code, and one of `tasks`; both are empty
    for a model of English. `suppressed` tokens are never said, `suppressed_first` not as the first.
    """

    start: int
    end: int
    previous: int
    no_speech: int
    first_time: int
    languages: Mapping[str, int]
    tasks: Mapping[Task, int]
    suppressed: tuple[int, ...]
    suppressed_first: tuple[int, ...]

    def language_of(self, token: int) -> str | None:
        """The code of a token's language."""
        return next((code for code, each in self.languages.items() if each == token), None)

    @property
    def language_names(self) -> tuple[tuple[str, str], ...]:
        """Codes and names; a code is its own name if no other is known."""
        codes = self.languages or ("en",)
        return tuple((code, LANGUAGES.get(code, code)) for code in codes)


def read_speech_tokens(
    tokenizer: HasTokens, configs: Sequence[Mapping[str, Any]], vocab_size: int, where: str
) -> SpeechTokens:
    """The tokens of a model; the first of `configs` that has a setting counts.

    Raises NotReadable if the tokenizer lacks one.
    """
    ids = tokenizer.added_ids

    def token(*names: str) -> int:
        for name in names:
            if name in ids:
                return ids[name]
        raise NotReadable(f"the tokenizer lacks the token {names[0]}", where=where)

    def setting(name: str, default: Any) -> Any:
        given = (config[name] for config in configs if config.get(name) is not None)
        return next(given, default)

    def listed(name: str) -> tuple[int, ...]:
        found = setting(name, ())
        is_list = isinstance(found, Sequence) and all(isinstance(each, int) for each in found)
        if not is_list or any(not 0 <= each < vocab_size for each in found):
            raise NotReadable(f"{name} is not a list of tokens", where=where)
        return tuple(found)

    start, end = token("<|startoftranscript|>"), token("<|endoftext|>")
    first_time = token("<|notimestamps|>") + 1
    if not 0 < end < start < first_time < vocab_size:
        raise NotReadable("the tokens of the vocabulary are in another order", where=where)
    tasks: dict[Task, int] = {}
    languages: dict[str, int] = {}
    if setting("is_multilingual", True):
        tasks = {"transcribe": token("<|transcribe|>"), "translate": token("<|translate|>")}
        last = min(tasks.values())
        codes = ((name.strip("<|>"), each) for name, each in ids.items())
        languages = {code: each for code, each in codes if start < each < last}
        if not languages:
            raise NotReadable("the tokenizer has no tokens of languages", where=where)
    controls = (each for each in range(start, first_time))
    return SpeechTokens(
        start,
        end,
        previous=token("<|startofprev|>"),
        no_speech=token(*_NO_SPEECH),
        first_time=first_time,
        languages=languages,
        tasks=tasks,
        suppressed=(*listed("suppress_tokens"), *controls),
        suppressed_first=listed("begin_suppress_tokens"),
    )
