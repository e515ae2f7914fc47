"""The commands of a chat: their names, their arguments, and what they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from re import DOTALL, fullmatch

from mrs.errors import UsageError
from mrs_cli.chat import attach_commands, chat_commands, session_commands
from mrs_cli.chat.chat_commands import setter
from mrs_cli.chat.chat_settings import is_setting
from mrs_cli.chat.chat_state import ChatState
from mrs_cli.chat.multiline_text import unquoted


@dataclass(frozen=True)
class ChatCommand:
    """`run` takes the argument and returns what to tell the person."""

    name: str
    argument: str
    help: str
    run: Callable[[ChatState, str], str]
    also: tuple[str, ...] = ()


#: What leaves a chat in a terminal although it is no command.
_FAREWELLS = ("exit", "quit")


def is_farewell(text: str) -> bool:
    """Whether a person wants to leave; a leading space makes a message of it."""
    return text.rstrip().lower() in _FAREWELLS


def parse_command(text: str) -> tuple[str, str] | None:
    r"""Name and argument of `\name argument` or `/name argument`; None for a message.

    A name has only letters, so that `/usr/bin` and `\frac{1}{2}` are messages; names of settings
    may have dashes.
    """
    match = fullmatch(r"[\\/]([A-Za-z_-]+|\?)(?:\s+(.*))?\s*", text, flags=DOTALL)
    if match is None or not (match[1].isalpha() or match[1] == "?" or is_setting(match[1])):
        return None
    return match[1].lower(), unquoted((match[2] or "").strip())


def run_command(chat: ChatState, name: str, argument: str) -> str:
    """Runs a command; UsageError if it is unknown or its argument is wrong."""
    command = find_command(name)
    if command is None and is_setting(name):
        return setter(name)(chat, argument)
    if command is None:
        raise UsageError(f"unknown command \\{name}", hint=_similar(name))
    if argument and not command.argument:
        raise UsageError(f"\\{name} takes no argument")
    return command.run(chat, argument)


def find_command(name: str) -> ChatCommand | None:
    """The command of this name, or with this further name."""
    return next((each for each in COMMANDS if name in (each.name, *each.also)), None)


def _similar(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, [command.name for command in COMMANDS], n=1)
    return f"did you mean \\{near[0]}?" if near else "\\help lists the commands"


def _help(chat: ChatState, _: str) -> str:
    names = [f"\\{command.name} {command.argument}".rstrip() for command in COMMANDS]
    width = max(map(len, names))
    rows = [
        f"{name:<{width}}  {command.help}" for name, command in zip(names, COMMANDS, strict=True)
    ]
    return "\n".join([*rows, "", *_HINTS])


_HINTS = (
    "A command may also begin with /. A leading space turns a command into a message.",
    "\\set verbose shows the speed of each reply, \\set quiet no longer does.",
    "Every setting is also a command: \\min-p 0.1 does the same as \\set min-p 0.1.",
    'Put """ before and after a text of several lines.',
    "In a terminal, Tab completes, Alt-Enter starts a new line, Ctrl-C stops a reply, and",
    "Ctrl-X Ctrl-E opens the message in your editor (VISUAL or EDITOR).",
    "With a vision model, paths and web addresses in a message attach images.",
    "A message that begins with the path of a file attaches the file.",
    "mrs --continue continues the last session, mrs --session NAME any.",
)

COMMANDS: tuple[ChatCommand, ...] = (
    ChatCommand("help", "", "show this list", _help, ("?",)),
    ChatCommand("exit", "", "leave the chat", chat_commands.leave, ("quit", "bye")),
    ChatCommand("system", "[TEXT]", "set or show the system prompt", chat_commands.system),
    ChatCommand("edit", "[TEXT]", "change the last message and ask again", chat_commands.edit),
    ChatCommand("retry", "", "ask the last message again", chat_commands.retry),
    ChatCommand("undo", "", "remove the last message and its reply", chat_commands.undo),
    ChatCommand(
        "sessions", "[WORDS]", "list or search your sessions", session_commands.list_sessions
    ),
    ChatCommand(
        "open",
        "SESSION|FILE",
        "continue a session by number, id or title, or a file",
        session_commands.open_session,
        ("load",),
    ),
    ChatCommand("new", "", "start a new session", session_commands.new, ("clear",)),
    ChatCommand("fork", "[TITLE]", "continue in a copy of this session", session_commands.fork),
    ChatCommand("title", "[TEXT]", "name this session", session_commands.title),
    ChatCommand(
        "export",
        "FILE",
        "write this session as .md or .json",
        session_commands.export_session,
        ("save",),
    ),
    ChatCommand("delete", "SESSION", "delete a session", session_commands.delete),
    ChatCommand(
        "attach",
        "[FILE...]",
        "add files to the next message, or list them",
        attach_commands.attach,
    ),
    ChatCommand("detach", "[N]", "take files back, all or one", attach_commands.detach),
    ChatCommand("model", "[MODEL]", "go on with another model", chat_commands.model),
    ChatCommand("tools", "", "list the tools of --mcp", chat_commands.tools),
    ChatCommand("tokens", "", "show how much of the context is used", chat_commands.tokens),
    ChatCommand("plan", "", "show layers and memory of each device", chat_commands.plan),
    ChatCommand(
        "set", "[NAME VALUE]", "change a sampling setting, or list all", chat_commands.set_setting
    ),
    ChatCommand("adapter", "[NAME]", "choose a LoRA adapter of --lora", chat_commands.adapter),
    ChatCommand("temperature", "[X]", "randomness, from 0 to 2", setter("temperature")),
    ChatCommand("topk", "[N]", "sample from the N most likely tokens", setter("top-k")),
    ChatCommand("topp", "[X]", "sample from tokens with this total probability", setter("top-p")),
)
