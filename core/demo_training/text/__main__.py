"""`python -m demo_training.text --output DIR`: train the demo model from nothing and write it.

The same machine, thread count and torch give the same bytes; other machines give other bytes and
a model of the same quality.
"""

from __future__ import annotations

from pathlib import Path

from demo_training.command import train_from_command_line

from .dialogues import dialogues
from .export import write_folder, write_gguf
from .fit import Recipe, fit
from .held_out import held_out_text
from .network import Shape
from .vocabulary import encode_chats, train_tokenizer


def main() -> None:
    """Parse the command line, train, write."""
    train_from_command_line(
        "demo_training.text", __doc__, 2, lambda folder: train(folder, Recipe(), Shape())
    )


def train(folder: Path, recipe: Recipe, shape: Shape) -> None:
    """Make the dialogues, fit tokenizer and model, and write both forms into `folder`.

    `held_out.txt` comes with them: dialogues of the same kind that were not trained on.
    """
    chats = [chat.messages() for chat in dialogues(recipe.seed, recipe.dialogues)]
    texts = (f"{m['role']}\n{m['content']}" for messages in chats[:20_000] for m in messages)
    tokenizer = train_tokenizer(texts, shape.vocab_size)
    encoded = encode_chats(tokenizer, chats)
    print(f"{len(encoded)} dialogues, {sum(len(ids) for ids, _ in encoded)} tokens", flush=True)
    model = fit(shape, encoded, recipe, lambda line: print(line, flush=True))
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    print(f"{sum(tensor.numel() for tensor in state.values())} parameters", flush=True)
    write_folder(folder, shape, state, tokenizer)
    write_gguf(folder / "demo.gguf", shape, state, tokenizer)
    held_out = folder / "held_out.txt"
    held_out.write_text(held_out_text(tokenizer, recipe), encoding="utf-8")


if __name__ == "__main__":
    main()
