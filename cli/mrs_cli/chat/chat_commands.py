"""What the commands of a chat do: each takes its argument and returns what to tell the person."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mrs.errors import UsageError
from mrs.request.sampling import SETTINGS
from mrs.source.address import model_name
from mrs_cli.chat.chat_images import count_images
from mrs_cli.chat.chat_settings import SAVED, changed, described, listed, to_json
from mrs_cli.chat.question import Question
from mrs_cli.chat.saved_chat import SavedChat
from mrs_cli.chat.session import Session

#: What `\adapter` calls the model alone.
_NO_ADAPTER = "none"


@dataclass
class ChatState:
    """What commands change; the chat ends when `open` is false.

    If it is `verbose`, statistics follow each reply.

    `pending` is asked next. `draft` is put into the editor, for the person to change; this needs a
    screen that `edits`.
    """

    session: Session
    edits: bool = False
    verbose: bool = False
    pending: Question | None = None
    draft: Question | None = None
    open: bool = True


def leave(chat: ChatState, _: str) -> str:
    chat.open = False
    return ""


def system(chat: ChatState, text: str) -> str:
    if not text:
        current = chat.session.system
        return "no system prompt is set" if current is None else f"system prompt is {current}"
    chat.session.system = text
    return f"system prompt is now {_shortened(text)}"


def clear(chat: ChatState, _: str) -> str:
    chat.session.clear()
    return "conversation cleared"


def edit(chat: ChatState, text: str) -> str:
    question = chat.session.last_question()
    if text:
        chat.pending = question.reworded(text)
    elif chat.edits:
        chat.draft = question
    else:
        raise UsageError("\\edit needs a text", hint="give the whole new message after it")
    return ""


def retry(chat: ChatState, _: str) -> str:
    chat.pending = chat.session.last_question()
    return ""


def undo(chat: ChatState, _: str) -> str:
    return f"removed: {_shortened(chat.session.undo().typed)}"


def save(chat: ChatState, name: str) -> str:
    from mrs_cli.chat import saved_chat

    session = chat.session
    path = saved_chat.save(session.saved, _file(name, "save"))
    return f"{_turns(len(session.turns))} saved to {path}"


def load(chat: ChatState, name: str) -> str:
    """Replaces the conversation, its system prompt and its settings."""
    from mrs_cli.chat import saved_chat

    saved = saved_chat.load(_file(name, "load"))
    chat.session.system = saved.system
    # What a chat cannot set, such as a grammar, is not in the file and stays.
    chat.session.sampling = replace(chat.session.sampling, **to_json(saved.sampling))
    chat.session.chosen_by = dict.fromkeys(SETTINGS, SAVED)
    return resumed(chat.session, saved)


def resumed(session: Session, saved: SavedChat) -> str:
    """Continues a saved chat, and describes it."""
    session.resume(saved.turns)
    model = model_name(saved.model_id) if saved.model_id else "an unknown model"
    lines = [f"{_turns(len(saved.turns))} loaded, from a chat with {model}"]
    if saved.turns:
        lines.append(f"last message: {_shortened(session.last_question().typed)}")
    if count_images(saved.turns) and session.vision is None:
        lines.append("this model has no vision support: it gets the text without the images")
    if saved.unknown_settings:
        lines.append(f"unknown settings, ignored: {', '.join(saved.unknown_settings)}")
    return "\n".join(lines)


def tokens(chat: ChatState, _: str) -> str:
    session = chat.session
    used, context = session.context_used_tokens(), session.model.context_tokens
    text = f"context: {used:,} of {context:,} tokens used, {max(0, context - used):,} left"
    if usage := session.usage:
        text += (
            f"\nlast reply: {usage.completion_tokens:,} tokens, "
            f"its prompt {usage.prompt_tokens:,} tokens ({usage.cached_tokens:,} cached)"
        )
    return text


def plan(chat: ChatState, _: str) -> str:
    from mrs_cli.render.plan.memory_tables import memory_tables

    return memory_tables(chat.session.model.plan, chat.session.model.memory())


def set_setting(chat: ChatState, text: str) -> str:
    """Switches statistics, or sets how tokens are chosen."""
    if text in ("verbose", "quiet"):
        chat.verbose = text == "verbose"
        return f"statistics after each reply are {'on' if chat.verbose else 'off'}"
    return set_sampling(chat, text)


def set_sampling(chat: ChatState, text: str) -> str:
    session = chat.session
    if not text:
        return listed(session.sampling, session.model.suggested_sampling, session.chosen_by)
    name, *value = text.split(maxsplit=1)
    if not value:
        return described(session.sampling, name)
    session.sampling = changed(
        session.sampling, name, value[0], session.model.suggested_sampling, session.chosen_by
    )
    return described(session.sampling, name, "is now")


def adapter(chat: ChatState, name: str) -> str:
    """Chooses the LoRA adapter of the next replies, among those that requests may choose."""
    session = chat.session
    names = [each.name for each in session.model.adapters if not each.is_merged]
    choices = f"choose {', '.join(names)} or {_NO_ADAPTER}"
    if not names:
        raise UsageError("no adapter is loaded", hint="start mrs with --lora NAME=ID")
    if not name:
        return f"adapter is {session.sampling.adapter or _NO_ADAPTER}; {choices}"
    if name not in (*names, _NO_ADAPTER):
        raise UsageError(f"there is no adapter {name}", hint=choices)
    chosen = None if name == _NO_ADAPTER else name
    session.sampling = replace(session.sampling, adapter=chosen)
    return f"adapter is now {name}"


def setter(name: str) -> Callable[[ChatState, str], str]:
    """`\\set` for one setting."""
    return lambda chat, text: set_sampling(chat, f"{name} {text}")


def _file(name: str, command: str) -> str:
    if not name:
        raise UsageError(f"\\{command} needs a file name", hint=f"such as \\{command} chat.json")
    return name


def _turns(messages: int) -> str:
    count = messages // 2
    return f"{count} {'turn' if count == 1 else 'turns'}"


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:59]}\u2026"
