"""The commands of the chat: what each is called, what it takes, what it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from re import DOTALL, fullmatch

from mrs.errors import UsageError
from mrs_cli.chat import chat_commands as actions
from mrs_cli.chat.chat_commands import Chat
from mrs_cli.chat.chat_settings import is_setting
from mrs_cli.chat.multiline_text import unquoted

__all__ = ["COMMANDS", "Chat", "Command", "parse", "run"]


@dataclass(frozen=True)
class Command:
    """`run` takes what follows the name and returns what to tell the person."""

    name: str
    argument: str
    help: str
    run: Callable[[Chat, str], str]


def parse(text: str) -> tuple[str, str] | None:
    r"""Name and argument of `\name argument` or `/name argument`; None for a message.

    Only letters make a name, so that `/usr/bin` and `\frac{1}{2}` stay messages; names of settings
    may have their dashes.
    """
    match = fullmatch(r"[\\/]([A-Za-z_-]+)(?:\s+(.*))?\s*", text, flags=DOTALL)
    if match is None or not (match[1].isalpha() or is_setting(match[1])):
        return None
    return match[1].lower(), unquoted((match[2] or "").strip())


def run(chat: Chat, name: str, argument: str) -> str:
    """Runs a command; UsageError for one that is unknown or given something wrong."""
    command = next((command for command in COMMANDS if command.name == name), None)
    if command is None and is_setting(name):
        return actions.setter(name)(chat, argument)
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
    return "\n".join([*rows, "", *_HINTS])


_HINTS = (
    "A / in place of the \\ works too; a leading space makes it a message.",
    "Each setting is a command of its own, too: \\min-p 0.1 is \\set min-p 0.1.",
    'Three quotes, """, open a text of several lines and close it.',
    "On a terminal Tab completes, Alt-Enter starts a new line, Ctrl-C stops a reply,",
    "and Ctrl-X Ctrl-E opens the message in the editor that VISUAL or EDITOR names.",
    "A model that sees is shown the images whose paths or addresses a message holds.",
    "mrs -i --continue goes on with the chat that ended last.",
)

COMMANDS: tuple[Command, ...] = (
    Command("help", "", "show this list", _help),
    Command("exit", "", "leave the chat", actions.leave),
    Command("system", "TEXT", "set the system prompt", actions.system),
    Command("clear", "", "forget the conversation", actions.clear),
    Command("edit", "[TEXT]", "change the last message and ask again", actions.edit),
    Command("retry", "", "ask the last message again", actions.retry),
    Command("undo", "", "take back the last message and its reply", actions.undo),
    Command("save", "FILE", "save the conversation and its settings", actions.save),
    Command("load", "FILE", "go on from a saved conversation", actions.load),
    Command("tokens", "", "tokens used of the context, and of them cached", actions.tokens),
    Command("plan", "", "what sits where, and the memory held now", actions.plan),
    Command(
        "set",
        "[NAME VALUE]",
        "set how replies are sampled, or list the settings",
        actions.set_sampling,
    ),
    Command("temperature", "[X]", "0 to 2: higher is more varied", actions.setter("temperature")),
    Command("topk", "[N]", "choose among the N likeliest tokens", actions.setter("top-k")),
    Command("topp", "[X]", "choose within this probability", actions.setter("top-p")),
)
