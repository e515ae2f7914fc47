"""What the commands of the chat do: each takes what follows its name and says what it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mrs.errors import UsageError
from mrs.source.address import model_name
from mrs_cli.chat.chat_images import count_images
from mrs_cli.chat.chat_settings import changed, described, listed
from mrs_cli.chat.saved_chat import SavedChat
from mrs_cli.chat.session import Question, Session


@dataclass
class Chat:
    """What commands act on; the chat ends when `open` is false.

    `pending` is asked next. `draft` waits for the person to change it, which takes a screen that
    `edits`.
    """

    session: Session
    edits: bool = False
    pending: Question | None = None
    draft: Question | None = None
    open: bool = True


def leave(chat: Chat, _: str) -> str:
    chat.open = False
    return ""


def system(chat: Chat, text: str) -> str:
    if not text:
        current = chat.session.system
        return "no system prompt is set" if current is None else f"system prompt is {current}"
    chat.session.system = text
    return f"system prompt is now {_shortened(text)}"


def clear(chat: Chat, _: str) -> str:
    chat.session.forget()
    return "conversation cleared"


def edit(chat: Chat, text: str) -> str:
    question = chat.session.last_question()
    if text:
        chat.pending = question.with_text(text, keeps_images=True)
    elif chat.edits:
        chat.draft = question
    else:
        raise UsageError("\\edit needs a text", hint="give the whole new message after it")
    return ""


def retry(chat: Chat, _: str) -> str:
    chat.pending = chat.session.last_question()
    return ""


def undo(chat: Chat, _: str) -> str:
    return f"taken back: {_shortened(chat.session.undo().typed)}"


def save(chat: Chat, name: str) -> str:
    from mrs_cli.chat import saved_chat

    session = chat.session
    path = saved_chat.save(session.saved, _file(name, "save"))
    return f"{_turns(len(session.turns))} saved to {path}"


def load(chat: Chat, name: str) -> str:
    """Takes over the conversation, its system prompt and its settings."""
    from mrs_cli.chat import saved_chat

    saved = saved_chat.load(_file(name, "load"))
    chat.session.system, chat.session.sampling = saved.system, saved.sampling
    return resumed(chat.session, saved)


def resumed(session: Session, saved: SavedChat) -> str:
    """Goes on with what was said in a saved chat, and describes it."""
    session.resume(saved.turns)
    model = model_name(saved.model_id) if saved.model_id else "an unnamed model"
    said = [f"{_turns(len(saved.turns))} loaded, held with {model}"]
    if saved.turns:
        said.append(f"last message: {_shortened(session.last_question().typed)}")
    if count_images(saved.turns) and session.vision is None:
        said.append("this model sees no images; they stay with the conversation")
    if saved.unknown_settings:
        said.append(f"settings not known here: {', '.join(saved.unknown_settings)}")
    return "\n".join(said)


def tokens(chat: Chat, _: str) -> str:
    session = chat.session
    used, context = session.context_used_tokens(), session.model.context_tokens
    said = f"context: {used:,} of {context:,} tokens used, {max(0, context - used):,} left"
    if usage := session.usage:
        said += (
            f"\nlast reply: {usage.completion_tokens:,} tokens, after a prompt of "
            f"{usage.prompt_tokens:,}, {usage.cached_tokens:,} of them from the cache"
        )
    return said


def plan(chat: Chat, _: str) -> str:
    from mrs_cli.render.memory_tables import held_text

    return held_text(chat.session.model.plan, chat.session.model.memory())


def set_sampling(chat: Chat, text: str) -> str:
    session = chat.session
    if not text:
        return listed(session.sampling)
    name, *value = text.split(maxsplit=1)
    if not value:
        return described(session.sampling, name)
    session.sampling = changed(session.sampling, name, value[0])
    return described(session.sampling, name, "is now")


def setter(name: str) -> Callable[[Chat, str], str]:
    """`\\set` for one setting."""
    return lambda chat, text: set_sampling(chat, f"{name} {text}")


def _file(name: str, command: str) -> str:
    if not name:
        raise UsageError(f"\\{command} needs a file", hint=f"such as \\{command} chat.json")
    return name


def _turns(messages: int) -> str:
    count = messages // 2
    return f"{count} {'turn' if count == 1 else 'turns'}"


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:59]}\u2026"
