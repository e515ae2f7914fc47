"""The adapter for images that Phi-4-multimodal comes with changes its language model."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from phi4_cases import PHI4_MULTIMODAL
from safetensors.torch import load_file
from vision_case import make_tokenizer
from vision_reference import PROMPTS, make_vision_reference
from vision_running import Conversation, difference, load_vision_model

from mrs.request import AdapterRequest
from support.lora_files import Adapter


@torch.no_grad()
def test_logits_with_the_adapter(tmp_path: Path) -> None:
    case = PHI4_MULTIMODAL[0]
    truth = make_vision_reference(case, tmp_path / "model")
    weights = {
        name: tensor
        for name, tensor in load_file(truth.folder / "model.safetensors").items()
        if name.startswith("model.layers.")
    }
    adapter = Adapter(weights, ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"))
    # Its other kinds of attention are causal in crops without padding.
    model = transformers.AutoModelForMultimodalLM.from_pretrained(
        truth.folder, attn_implementation="eager"
    ).eval()
    for name in weights:
        module = name.removesuffix(".weight")
        if f"{module}.lora_A.weight" in adapter.tensors:
            a, b = (adapter.tensors[f"{module}.lora_{part}.weight"] for part in "AB")
            model.get_parameter(name).add_(b @ a, alpha=adapter.scale_of(module))
    image = truth.prompts[1].images[0]
    text = PROMPTS[1].replace("{}", case.placeholder)
    inputs = case.processor(make_tokenizer(case.specials))(text=[text], images=[image])
    request = AdapterRequest(str(adapter.write(tmp_path / "adapter")), "vision", is_merged=True)
    ours = load_vision_model(truth.folder, adapters=(request,))
    ids, images = ours.shown(PROMPTS[1], [image])
    found = Conversation(ours).feed(ids, images)
    assert difference(found, model(**inputs).logits[0]) < 1e-4
    assert difference(found, truth.prompts[1].logits) > 1e-2
