"""A.X K1's published files have no correction of scores, and a norm that nothing reads."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from parity_cases import CASES
from running import TOLERANCE, Conversation, difference, load
from safetensors.torch import load_file, save_file
from transformers_reference import new_model, save

from mrs.request import ModelSource

CASE = next(case for case in CASES if case.id == "axk1-default")
UNREAD = "model.layers.0.post_mlp_layernorm.weight"


@torch.no_grad()
def test_files_as_published(tmp_path: Path) -> None:
    torch.manual_seed(5)
    model = new_model(CASE, transformers.AutoConfig.for_model(CASE.family, **CASE.config))
    save(model.float().eval(), tmp_path)  # its corrections are zeros
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    kept = {name: each for name, each in tensors.items() if "correction" not in name}
    assert UNREAD not in kept
    assert len(kept) < len(tensors)
    save_file({**kept, UNREAD: torch.full((CASE.config["hidden_size"],), 7.0)}, file)
    prompt = torch.randint(150, (20,))
    loaded = load(ModelSource(str(tmp_path), "safetensors"))
    assert loaded.description.warnings == ()
    ours = Conversation(loaded.decoder, chunk_tokens=7).feed(prompt.tolist())
    assert difference(ours, model(prompt[None]).logits[0]) < TOLERANCE
