"""Whether a draft model has the tokens of the model that it drafts for."""

from __future__ import annotations

from mrs.errors import UsageError
from mrs.text.tokenizer import Tokenizer


def require_same_tokens(tokenizer: Tokenizer, drafted: Tokenizer, name: str) -> None:
    """Raise UsageError for the first token of the draft model `name` that differs."""
    ours, theirs = (each.backend.get_vocab(with_added_tokens=True) for each in (tokenizer, drafted))
    if ours == theirs:
        return
    token = min(token for _, token in {*ours.items()} ^ {*theirs.items()})
    draft_text, text = (_named(each.text_of(token)) for each in (drafted, tokenizer))
    raise UsageError(
        f"token {token} of the draft model is {draft_text}, and that of the model is {text}",
        where=f"--draft-model {name}",
        hint="a draft model must have the same vocabulary, as smaller models of the family do",
    )


def _named(text: str | None) -> str:
    return "missing" if text is None else repr(text)
