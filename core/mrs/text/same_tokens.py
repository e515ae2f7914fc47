"""Whether a draft model has the tokens of the model that it drafts for."""

from __future__ import annotations

from mrs.errors import UsageError
from mrs.text.tokenizer import Tokenizer


def require_same_tokens(tokenizer: Tokenizer, drafted: Tokenizer, name: str) -> None:
    """Raise UsageError for the first token of the draft model `name` that differs."""
    ours, theirs = (each.backend.get_vocab(with_added_tokens=True) for each in (tokenizer, drafted))
    if ours == theirs:
        return
    token, _ = min((*{*ours.items()} ^ {*theirs.items()},), key=lambda pair: pair[1])[::-1]
    texts = [
        repr(text) if (text := each.text_of(token)) else "none" for each in (drafted, tokenizer)
    ]
    raise UsageError(
        f"token {token} of the draft model is {texts[0]}, and that of the model {texts[1]}",
        where=f"--draft-model {name}",
        hint="a draft model must have the same vocabulary, as smaller models of the family do",
    )
