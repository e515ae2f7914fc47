"""The fields of a request that say how replies are generated."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct, defstruct

from mrs.request import Effort, Sampling
from mrs.request.sampling import SETTINGS, chosen_sampling
from mrs.request.setting_kinds import (
    BIAS,
    Biases,
    Choice,
    Number,
    Setting,
    SettingKind,
    Text,
    Texts,
    Tokens,
)
from mrs.server.http.errors import ApiError, errors_of
from mrs.server.schemas.unsupported import refuse_unsupported

ShortText = Annotated[str, Meta(min_length=1, max_length=Texts().longest)]
TextList = Annotated[list[ShortText], Meta(max_length=Texts().most)]


def _bounds(kind: SettingKind) -> Meta:
    assert isinstance(kind, Number)
    return Meta(ge=kind.low, le=kind.high)


def _number(kind: Number) -> Any:
    return Annotated[int if kind.whole else float, _bounds(kind)]


#: The other names of `max_tokens` have its bounds.
MaxTokens = Annotated[int, _bounds(SETTINGS["max_tokens"].kind)]


def _field_type(setting: Setting) -> Any:
    """The type of a setting's field, which is described and may be null."""
    kind = setting.kind
    if isinstance(kind, Number):
        value: Any = _number(kind)
    elif isinstance(kind, Texts):
        value = ShortText | TextList
    elif isinstance(kind, Text):
        value = Annotated[str, Meta(max_length=kind.longest)]
    elif isinstance(kind, Choice):
        value = Literal[kind.words]
    elif isinstance(kind, Tokens):
        value = Annotated[list[int], Meta(max_length=kind.most)]
    else:
        assert isinstance(kind, Biases)
        bias: Any = _number(BIAS)
        value = Annotated[dict[str, bias], Meta(max_length=kind.most)]
    default = "" if setting.default in (None, ()) else f" Default: {setting.shown_default}."
    return Annotated[value | None, Meta(description=setting.help + default)]


if TYPE_CHECKING:

    class SettingFields(Struct, kw_only=True):
        """The fields that code names."""

        max_tokens: int | None = None
        stop: str | list[str] | None = None
        reasoning_effort: Effort | None = None
        reasoning_budget: int | None = None

else:
    SettingFields = defstruct(
        "SettingFields",
        [(name, _field_type(setting), None) for name, setting in SETTINGS.items()],
        kw_only=True,
    )


class StreamOptions(Struct, kw_only=True):
    """`include_usage` adds a last chunk without choices that has the usage."""

    include_usage: bool | None = None


class SamplingFields(SettingFields, kw_only=True):
    """Fields that chat completions and completions have in common; null is the same as absent.

    Settings of the sampler without a value are those that the model's files suggest, or else those
    of the chat; `temperature` 0 always takes the most likely token.

    n                  number of replies
    logit_bias         token id (as a string) -> value that is added to its logit
    truncate_sequence  drop the oldest part of a prompt that exceeds the context
    truncate_prompt_tokens  keep that many of the newest tokens of a prompt; -1: truncate_sequence
    ignore_eos         no token of the model's own ends a reply; stop and stop_token_ids do
    skip_special_tokens         false shows the text of control tokens
    include_stop_str_in_output  the text or token that ended a reply is part of it
    return_progress    a stream begins with the progress of loading, if the model has to be loaded
    cache_salt         only prompts with the same salt share cached prefixes
    adapter            the LoRA adapter of that name, which --lora loads
    """

    model: str | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    truncate_sequence: bool | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_progress: bool | None = None
    cache_salt: Annotated[str, Meta(max_length=Texts().longest)] | None = None
    adapter: ShortText | None = None

    @classmethod
    def prepare_fields(cls, given: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
        """The fields of a body by the names of this type. Raises ApiError for unsupported ones."""
        fields = dict(given)
        for setting in SETTINGS.values():
            for alias in setting.aliases:
                if alias in fields and alias not in known:
                    _rename(fields, alias, setting.name)
        refuse_unsupported(fields, known)
        return fields

    @property
    def cut(self) -> dict[str, Any]:
        """How a prompt is shortened: arguments of the methods of `PromptReader`."""
        most_tokens = self.truncate_prompt_tokens
        return {
            "truncate": bool(self.truncate_sequence) or most_tokens == -1,
            "most_tokens": None if most_tokens == -1 else most_tokens,
        }

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def wants_usage(self) -> bool:
        """Whether the stream ends with a chunk that has the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def wants_progress(self) -> bool:
        """Whether a stream begins before the model is loaded."""
        return bool(self.stream and self.return_progress)

    def check(self) -> None:
        """Raises ApiError for fields that contradict each other."""
        if self.stream_options is not None and not self.stream:
            raise ApiError(
                400, "stream_options needs a stream: add stream", "stream_options", "invalid_value"
            )

    def form(self) -> dict[str, Any]:
        """The fields of `Sampling` that give replies a form. Raises ApiError."""
        return {}

    def samplings(
        self, suggested: Mapping[str, Any], count: int, logprobs: int | None, max_tokens: int | None
    ) -> list[Sampling]:
        """The settings of each of `count` replies; the model suggests some. Raises ApiError."""
        given = {name: getattr(self, name) for name in SETTINGS if name != "max_tokens"}
        for name, value in given.items():
            kind = SETTINGS[name].kind
            if value is not None and not kind.accepts(value):
                raise ApiError(400, f"{name}: give {kind.wording}", name, "invalid_value")
        more = {
            "ignore_eos": bool(self.ignore_eos),
            "shows_control": self.skip_special_tokens is False,
            "keeps_stop": bool(self.include_stop_str_in_output),
            "adapter": self.adapter,
            **self.form(),
        }
        with errors_of("min_tokens"):
            common = chosen_sampling(
                given, suggested, logprobs=logprobs, max_tokens=max_tokens, **more
            )
        return [replace(common, variant=index) for index in range(count)]


def _rename(fields: dict[str, Any], alias: str, name: str) -> None:
    """Give a field the name that it has here. Raises ApiError if it has both, with other values."""
    value = fields.pop(alias)
    if fields.get(name, value) != value and value is not None:
        raise ApiError(400, f"{alias} and {name} differ: leave one out", alias, "invalid_value")
    if fields.get(name) is None:
        fields[name] = value
