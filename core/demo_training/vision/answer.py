"""Greedy answers of the network itself, to judge it by."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer
from torch import Tensor

from demo_training.text.vocabulary import END, START

from .dialogues import Dialogue
from .network import Llava
from .vocabulary import IMAGE, SPECIALS

_END = SPECIALS.index(END)


def prompt(tokenizer: Tokenizer, dialogue: Dialogue, patches: int) -> list[int]:
    """Token ids up to the start of the last answer."""
    *before, _ = dialogue.written(IMAGE * patches)
    text = "".join(f"{START}{m['role']}\n{m['content']}{END}\n" for m in before)
    ids: list[int] = tokenizer.encode(f"{text}{START}assistant\n").ids
    return ids


@torch.no_grad()
def greedy(
    model: Llava, prompts: Sequence[list[int]], pixels: Tensor, most: int
) -> list[list[int]]:
    """The answers to `prompts`, at most `most` tokens each, without the token that ends them.

    `pixels` has the images of all prompts in order.
    """
    rows = [list(ids) for ids in prompts]
    features = model.image_embeddings(pixels)
    open_rows = set(range(len(rows)))
    for _ in range(most):
        tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
        for row, ids in enumerate(rows):
            tokens[row, : len(ids)] = torch.tensor(ids)
        last = torch.tensor([len(ids) - 1 for ids in rows])
        hidden = model.hidden_states(tokens, features)[torch.arange(len(rows)), last]
        for row, token in enumerate(model.logits(hidden).argmax(-1).tolist()):
            if row in open_rows:
                rows[row].append(token)
        open_rows = {row for row in open_rows if rows[row][-1] != _END}
        if not open_rows:
            break
    return [ids[len(start) :] for ids, start in zip(rows, prompts, strict=True)]
