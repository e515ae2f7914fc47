"""Dialogues that were never trained on, as one text to measure perplexity with."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from tokenizers import Tokenizer

from .dialogues import dialogue, dialogues
from .fit import Recipe
from .vocabulary import Messages, render

_SEED = 987_654


def held_out_chats(recipe: Recipe) -> Iterator[Messages]:
    """Chats of two exchanges and more, from another seed, without end.

    The facts and the wordings are those of the training dialogues, their combinations are not.
    """
    trained = {render(chat.messages()) for chat in dialogues(recipe.seed, recipe.dialogues)}
    rng = Random(_SEED)
    while True:
        chat = dialogue(rng)
        if len(chat.exchanges) > 1 and render(chat.messages()) not in trained:
            yield chat.messages()


def held_out_text(tokenizer: Tokenizer, recipe: Recipe, tokens: int = 10_000) -> str:
    """Held-out chats one after another, at least `tokens` tokens of them."""
    count, texts = 0, []
    for messages in held_out_chats(recipe):
        if count >= tokens:
            break
        texts.append(render(messages))
        count += len(tokenizer.encode(texts[-1]).ids)
    return "".join(texts)
