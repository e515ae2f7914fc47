"""`python -m demo_training.text.train_head --output DIR`: train a draft head for the demo model.

DIR has the demo model, which stays as it is; the head is a file beside it, and an index names both.
The package has no head: the model is too small to gain by it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from demo_training.command import train_from_command_line

from .dialogues import dialogues
from .draft_head import fit_head
from .fit import Recipe
from .network import Llama, Shape
from .vocabulary import encode_chats

TARGET_FILE, HEAD_FILE = "model.safetensors", "mtp.safetensors"
#: A head learns from a part of the dialogues, in smaller batches.
DIALOGUES_SHARE, BATCH_SHARE = 0.1, 0.5


def main() -> None:
    """Parse the command line, train, write."""
    train_from_command_line(
        "demo_training.text.train_head",
        __doc__,
        2,
        lambda folder: train_head(folder, Recipe(), Shape()),
    )


def train_head(folder: Path, recipe: Recipe, shape: Shape) -> None:
    """Train a head for the model in `folder`, and write it and the index there."""
    target = Llama(shape)
    stored = load_file(folder / TARGET_FILE)
    target.load_state_dict(stored)
    recipe = replace(
        recipe,
        dialogues=round(DIALOGUES_SHARE * recipe.dialogues),
        batch_tokens=round(BATCH_SHARE * recipe.batch_tokens),
    )
    chats = [chat.messages() for chat in dialogues(recipe.seed, recipe.dialogues)]
    encoded = encode_chats(Tokenizer.from_file(str(folder / "tokenizer.json")), chats)
    head = fit_head(target, encoded, recipe, lambda line: print(line, flush=True))
    weights = {
        f"mtp.{name}": tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in head.state_dict().items()
    }
    print(
        f"{sum(tensor.numel() for tensor in weights.values())} parameters of the head", flush=True
    )
    save_file(weights, folder / HEAD_FILE, metadata={"format": "pt"})
    size = sum(each.numel() * each.element_size() for each in (*stored.values(), *weights.values()))
    files = {**dict.fromkeys(stored, TARGET_FILE), **dict.fromkeys(weights, HEAD_FILE)}
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(files.items()))}
    text = json.dumps(index, indent=2) + "\n"
    (folder / f"{TARGET_FILE}.index.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
