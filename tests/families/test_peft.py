"""LoRA adapters that the library peft made, against its own logits in float32.

peft is not among the test requirements: `pip install --no-deps peft accelerate` brings it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from adapter_bases import LLAMA, PROMPT, logits, source
from case import Case
from running import TOLERANCE, Loaded, difference, load
from test_chosen_adapters import batch_logits
from torch import Tensor

from mrs.request import AdapterRequest

pytestmark = pytest.mark.needs("peft")

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
QWEN = Case("qwen2", "biased", {}, None)
SETTINGS: dict[str, dict[str, Any]] = {
    "list": {"target_modules": ATTENTION, "r": 4, "lora_alpha": 8},
    "all-linear": {"target_modules": "all-linear", "r": 3, "lora_alpha": 6, "use_rslora": True},
    "regex": {"target_modules": r".*layers\.1\..*(q|up)_proj", "r": 8, "lora_alpha": 4},
    "layers": {"target_modules": ATTENTION, "layers_to_transform": [1], "layers_pattern": "layers"},
    "patterns": {
        "target_modules": [*ATTENTION, "down_proj"],
        "rank_pattern": {"down_proj": 5, r"layers\.0\.self_attn\.q_proj": 2},
        "alpha_pattern": {"o_proj": 32, r"model\.layers\.1\..*\.q_proj": 1},
    },
    "dora": {"target_modules": "all-linear", "use_dora": True},
    "whole": {"target_modules": ATTENTION, "modules_to_save": ["lm_head", "embed_tokens"]},
    "embedding": {"target_modules": ["embed_tokens", "lm_head", "q_proj"]},
}


def save(folder: Path, base: Path, name: str, seed: int = 0) -> Tensor:
    """Save a random adapter of the base model; returns peft's logits (T, V) of the prompt."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    import peft

    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **SETTINGS[name]))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_" in key and "magnitude" not in key:
                parameter.normal_(std=0.15)
            elif parameter.requires_grad:
                parameter.mul_(1 + 0.2 * torch.rand_like(parameter))
        model.eval()
        model.save_pretrained(folder)
        found: Tensor = model(torch.tensor([PROMPT])).logits[0]
    return found


def loaded_with(base: Path, folders: Sequence[Path], *, is_merged: bool) -> Loaded:
    requests = [AdapterRequest(str(each), each.name, is_merged) for each in folders]
    return load(source(base), adapters=requests)


@pytest.mark.parametrize("case", [LLAMA, QWEN], ids=lambda case: case.id)
@pytest.mark.parametrize("name", SETTINGS)
def test_merged(base: Any, tmp_path: Path, case: Case, name: str) -> None:
    folder = base(case).folder
    truth = save(tmp_path, folder, name)
    found = logits(loaded_with(folder, [tmp_path], is_merged=True))
    assert difference(found, truth) < TOLERANCE
    assert difference(logits(load(source(folder))), truth) > 50 * TOLERANCE


@pytest.mark.parametrize("case", [LLAMA, QWEN], ids=lambda case: case.id)
def test_three_in_one_batch(base: Any, tmp_path: Path, case: Case) -> None:
    folder = base(case).folder
    names = ["all-linear", "patterns", "regex"]
    truths = [save(tmp_path / name, folder, name, seed) for seed, name in enumerate(names)]
    loaded = loaded_with(folder, [tmp_path / name for name in names], is_merged=False)
    found = batch_logits(loaded, [2, 0, None, 1])
    plain = logits(load(source(folder)))
    for ours, theirs in zip(found, [truths[2], truths[0], plain, truths[1]], strict=True):
        assert difference(ours, theirs) < TOLERANCE
