"""What the commands of a chat do: each takes its argument and returns what to tell the person."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mrs.errors import Unsupported, UsageError
from mrs_cli.chat.chat_message import shortened
from mrs_cli.chat.chat_settings import changed, described, listed
from mrs_cli.chat.chat_state import ChatState

#: What `\adapter` calls the model alone.
_NO_ADAPTER = "none"


def leave(chat: ChatState, _: str) -> str:
    chat.open = False
    return ""


def system(chat: ChatState, text: str) -> str:
    if not text:
        current = chat.session.system
        return "no system prompt is set" if current is None else f"system prompt is {current}"
    chat.session.system = text
    return f"system prompt is now {shortened(text)}"


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
    return f"removed: {shortened(chat.session.undo().typed)}"


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

    model = chat.session.model
    if model.plan is None:
        raise Unsupported(
            "the plan is that of the server which has the model", hint="mrs plan -m ID shows one"
        )
    return memory_tables(model.plan, model.memory())


def model(chat: ChatState, name: str) -> str:
    """Says which model runs, or goes on with another one."""
    session = chat.session
    if not name:
        return f"model is {session.model.summary}"
    if chat.switch_model is None:
        raise UsageError("this chat keeps its model", hint="start mrs with another one")
    return chat.switch_model(name)


def tools(chat: ChatState, _: str) -> str:
    box = chat.session.tools
    if box is None:
        raise UsageError("there are no tools", hint='start mrs with --mcp "COMMAND" or --mcp URL')
    return box.described()


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
