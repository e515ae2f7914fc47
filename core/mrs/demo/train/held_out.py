# ruff: noqa: TID253 -- training is a program of its own, imported by nothing.
"""Dialogues that were never trained on, as one text to measure perplexity with."""

from __future__ import annotations

from random import Random

from tokenizers import Tokenizer

from .dialogues import dialogue, dialogues
from .fit import Recipe
from .vocabulary import render

_SEED = 987_654


def held_out_text(tokenizer: Tokenizer, recipe: Recipe, tokens: int = 10_000) -> str:
    """Chats of two exchanges and more, from another seed, at least `tokens` tokens of them.

    The facts and the wordings are those of the training dialogues, their combinations are not.
    """
    trained = {render(chat.messages()) for chat in dialogues(recipe.seed, recipe.dialogues)}
    rng, count, texts = Random(_SEED), 0, []
    while count < tokens:
        chat = dialogue(rng)
        text = render(chat.messages())
        if len(chat.exchanges) > 1 and text not in trained:
            texts.append(text)
            count += len(tokenizer.encode(text).ids)
    return "".join(texts)
