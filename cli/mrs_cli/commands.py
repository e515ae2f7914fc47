"""The commands of the chat: what each is called, what it takes, what it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from re import DOTALL, fullmatch

from mrs.errors import UsageError
from mrs_cli.session import Session
from mrs_cli.settings import Setting


@dataclass
class Chat:
    """What commands act on. `pending` is asked next; the chat ends when `open` is false."""

    session: Session
    pending: str | None = None
    open: bool = True


@dataclass(frozen=True)
class Command:
    """`run` takes what follows the name and returns what to tell the person."""

    name: str
    argument: str
    help: str
    run: Callable[[Chat, str], str]


def parse(text: str) -> tuple[str, str] | None:
    r"""Name and argument of `\name argument` or `/name argument`; None for a message.

    Only letters make a name, so that `/usr/bin` and `\frac{1}{2}` stay messages.
    """
    match = fullmatch(r"[\\/]([A-Za-z]+)(?:\s+(.*))?\s*", text, flags=DOTALL)
    return (match[1].lower(), (match[2] or "").strip()) if match else None


def run(chat: Chat, name: str, argument: str) -> str:
    """Runs a command; UsageError for one that is unknown or given something wrong."""
    command = next((command for command in COMMANDS if command.name == name), None)
    if command is None:
        near = get_close_matches(name, [command.name for command in COMMANDS], n=1)
        hint = f"did you mean \\{near[0]}?" if near else "\\help lists the commands"
        raise UsageError(f"no command \\{name}", hint=hint)
    if argument and not command.argument:
        raise UsageError(f"\\{name} takes nothing after it")
    return command.run(chat, argument)


def _help(chat: Chat, _: str) -> str:
    names = [f"\\{command.name} {command.argument}".rstrip() for command in COMMANDS]
    width = max(map(len, names))
    rows = [
        f"{name:<{width}}  {command.help}" for name, command in zip(names, COMMANDS, strict=True)
    ]
    return "\n".join(
        [*rows, "", "A / in place of the \\ works too; a leading space makes it a message."]
    )


def _exit(chat: Chat, _: str) -> str:
    chat.open = False
    return ""


def _system(chat: Chat, text: str) -> str:
    if not text:
        system = chat.session.system
        return "no system prompt is set" if system is None else f"system prompt: {system}"
    chat.session.system = text
    return "system prompt set"


def _clear(chat: Chat, _: str) -> str:
    chat.session.forget()
    return "conversation cleared"


def _setter(name: str, setting: Setting) -> Callable[[Chat, str], str]:
    """Sets one number of the sampling."""

    def run(chat: Chat, text: str) -> str:
        if not text:
            raise UsageError(f"\\{name} needs a value", hint=f"give {setting.wording}")
        value = setting.parse(text, spelled=f"\\{name} {text}")
        chat.session.sampling = replace(chat.session.sampling, **{setting.name: value})  # type: ignore[arg-type]
        return f"{name} is now {value:g}"

    return run


_TEMPERATURE = Setting("temperature", high=2, above=True)
_TOP_K = Setting("top_k", whole=True, low=1)
_TOP_P = Setting("top_p", high=1, above=True)

COMMANDS: tuple[Command, ...] = (
    Command("help", "", "show this list", _help),
    Command("exit", "", "leave the chat", _exit),
    Command("system", "TEXT", "set the system prompt", _system),
    Command("clear", "", "forget the conversation", _clear),
    Command(
        "temperature",
        "X",
        "above 0, up to 2: higher is more varied",
        _setter("temperature", _TEMPERATURE),
    ),
    Command("topk", "N", "choose among the N likeliest tokens", _setter("topk", _TOP_K)),
    Command(
        "topp", "X", "above 0, up to 1: choose within this probability", _setter("topp", _TOP_P)
    ),
)
