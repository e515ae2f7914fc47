"""A GGUF model and the file of its projector give what the safetensors files give."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gemma3_cases import GEMMA3, SPECIALS
from gguf_tensors import MMPROJ, MODEL, write
from safetensors.torch import load_file
from tokenizers import pre_tokenizers
from vision_reference import VisionReference, make_vision_reference, picture
from vision_running import Conversation, LoadedVisionModel, difference, load_vision_model

from mrs import ChatCompletionRequest, ChatCompletionResponse, Runner, Which
from mrs.architecture.describe import describe
from mrs.architecture.vision.mmproj import fits_model
from mrs.errors import NotReadable, Unsupported
from mrs.request import ModelSource
from mrs.source.find import find_projector, open_checkpoint
from mrs_cli.app import main
from mrs_cli.environment import Environment

#: Whose row of the table these tests fill.
FAMILY = "gemma3"
TEMPLATE = """
{%- for message in messages %}{{ message['role'] + ': ' }}
{%- for part in message['content'] %}
{%- if part['type'] == 'image' %}{{ '<start_of_image>' }}{% else %}{{ part['text'] }}{% endif %}
{%- endfor %}
{%- endfor %}{% if add_generation_prompt %} model:{% endif %}"""


def write_tokenizer(writer: gguf.GGUFWriter, controls: Sequence[str]) -> None:
    """A token a byte, one of two, and control tokens."""
    alphabet = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "qx"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*alphabet, *controls])
    kinds = (gguf.TokenType.NORMAL, gguf.TokenType.CONTROL)
    writer.add_token_types([kinds[0]] * len(alphabet) + [kinds[1]] * len(controls))
    writer.add_token_merges(["q x"])
    writer.add_chat_template(TEMPLATE)


def write_text(
    folder: Path,
    config: dict[str, Any],
    tensors: dict[str, torch.Tensor],
    tokens: Sequence[str] = (),
) -> None:
    """The language model as llama.cpp's converter writes it: norms are sums with one."""
    writer = gguf.GGUFWriter(folder / MODEL, "gemma3")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_sliding_window(config["sliding_window"])
    ropes = config["rope_parameters"]
    writer.add_rope_freq_base(ropes["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
    if tokens:
        write_tokenizer(writer, tokens)
    else:
        writer.add_tokenizer_model("none")
        writer.add_vocab_size(config["vocab_size"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA3, config["num_hidden_layers"])
    converted = {}
    for name, tensor in tensors.items():
        if name.startswith("language_model."):
            own = name.removeprefix("language_model.")
            mapped = names.get_name(own, try_suffixes=(".weight", ".bias"))
            assert mapped is not None, own
            converted[mapped] = tensor + 1 if own.endswith("norm.weight") else tensor
    write(writer, converted)


def write_projector(
    folder: Path, vision: dict[str, Any], tensors: dict[str, torch.Tensor], *, pool: int
) -> None:
    writer = gguf.GGUFWriter(folder / MMPROJ, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "gemma3")
    writer.add_uint32("clip.vision.image_size", vision["image_size"])
    writer.add_uint32("clip.vision.patch_size", vision["patch_size"])
    writer.add_uint32("clip.vision.embedding_length", vision["hidden_size"])
    writer.add_uint32("clip.vision.feed_forward_length", vision["intermediate_size"])
    writer.add_uint32("clip.vision.block_count", vision["num_hidden_layers"])
    writer.add_uint32("clip.vision.attention.head_count", vision["num_attention_heads"])
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", vision["layer_norm_eps"])
    writer.add_uint32("clip.vision.projector.scale_factor", pool)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    writer.add_bool("clip.use_gelu", True)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, vision["num_hidden_layers"])
    converted = {}
    for name, tensor in tensors.items():
        if name.startswith("language_model.") or ".head." in name:
            continue
        # The converter spells the parameters of the projector as modules.
        own = name.replace("vision_tower.", "vision_tower.vision_model.", 1)
        own = own.replace("vision_model.vision_model", "vision_model").replace("_weight", ".weight")
        mapped = names.get_name(own, try_suffixes=(".weight", ".bias"))
        assert mapped is not None, own
        converted[mapped] = tensor + 1 if "soft_emb_norm" in own else tensor
    write(writer, converted)


def make_model(folder: Path, **text_changes: Any) -> VisionReference:
    """A tiny Gemma 3 in safetensors files."""
    # GGUF files do not say which layers have windows: five of six.
    config = GEMMA3[0].config
    text = {**config["text_config"], "num_hidden_layers": 6, "sliding_window_pattern": 6}
    text |= text_changes
    case = replace(GEMMA3[0], config={**config, "text_config": text})
    return make_vision_reference(case, folder)


def convert(folder: Path, tokens: Sequence[str] = ()) -> None:
    """The same as two GGUF files."""
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    write_text(folder, config["text_config"], tensors, tokens)
    write_projector(folder, config["vision_config"], tensors, pool=2)


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> VisionReference:
    folder = tmp_path_factory.mktemp("gemma3-gguf")
    reference = make_model(folder)
    convert(folder)
    return reference


def source(folder: Path, mmproj: str = MMPROJ) -> ModelSource:
    return ModelSource(str(folder), "gguf", filenames=(MODEL,), mmproj=mmproj)


@pytest.mark.few(1)
@pytest.mark.table("GGUF")
@pytest.mark.parametrize("images", [0, 1, 2])
def test_prompts(truth: VisionReference, images: int) -> None:
    model = load_vision_model(truth.folder, source=source(truth.folder))
    model = with_token(model, truth)
    prompt = truth.prompts[images]
    ids, shown = model.shown(prompt.text, prompt.images)
    assert ids == prompt.ids
    assert difference(Conversation(model).feed(ids, shown), prompt.logits) < 1e-4


def with_token(model: LoadedVisionModel, truth: VisionReference) -> LoadedVisionModel:
    """The tiny vocabulary has the image token elsewhere than published ones."""
    token = truth.case.config["image_token_index"]
    vision = replace(model.vision, image_token_id=token)
    spec = replace(model.description.spec, vision=vision)
    return replace(model, description=replace(model.description, spec=spec))


def test_the_projector_is_found_beside_its_model(truth: VisionReference) -> None:
    found = find_projector(ModelSource(str(truth.folder), "gguf", (MODEL,)), fits_model)
    assert found == MMPROJ


def test_a_projector_fits_its_model_alone() -> None:
    model = {"general.architecture": "gemma3", "gemma3.embedding_length": 64}
    of_64 = {"general.type": "mmproj", "clip.vision.projection_dim": 64}
    own = {**of_64, "clip.projector_type": "gemma3"}
    assert fits_model(own, model)
    assert not fits_model({**own, "clip.vision.projection_dim": 32}, model)
    assert not fits_model({**own, "clip.projector_type": "resampler"}, model)
    assert not fits_model(own, {"general.architecture": "llama", "llama.embedding_length": 64})
    assert not fits_model(own, {"general.architecture": "bonsai"})


def test_without_the_projector_it_is_a_text_model(truth: VisionReference) -> None:
    plain = ModelSource(str(truth.folder), "gguf", filenames=(MODEL,))
    assert describe(open_checkpoint(plain)).spec.vision is None


def test_refuses_what_is_no_projector(truth: VisionReference) -> None:
    with pytest.raises(NotReadable, match="no file other"):
        open_checkpoint(source(truth.folder, "other.gguf"))
    with pytest.raises(NotReadable, match="both in"):
        open_checkpoint(source(truth.folder, MODEL))
    other = gguf.GGUFWriter(truth.folder / "mmproj-x.gguf", "clip")
    other.add_string("clip.projector_type", "resampler")
    write(other, {"v.x": torch.zeros(4)})
    with pytest.raises(Unsupported, match="resampler"):
        describe(open_checkpoint(source(truth.folder, "mmproj-x.gguf")), with_vision=True)


@pytest.mark.full
def test_answers_on_the_command_line(tmp_path: Path) -> None:
    """Replies depend on the picture, and its rows are counted."""
    make_model(tmp_path, vocab_size=257 + len(SPECIALS))
    convert(tmp_path, SPECIALS)
    replies = []
    for seed in range(2):
        path = tmp_path / f"{seed}.png"
        picture(40, 30, seed=seed).save(path)
        out, err = io.StringIO(), io.StringIO()
        words = ["--cpu", "--json", "-P", "What?", "--image", str(path), "--temperature", "0"]
        words += ["--frequency-penalty", "0.1", "--presence-penalty", "0.1"]
        words += ["--max-tokens", "12", "gguf", "-m", str(tmp_path), "-f", MODEL]
        code = main([*words, "--mmproj", MMPROJ], Environment(io.StringIO(), out, err))
        assert code == 0, err.getvalue()
        replies.append(json.loads(out.getvalue()))
    out, err = io.StringIO(), io.StringIO()
    words = [*words[: words.index("gguf")], "-m", str(tmp_path), "-f", MODEL]
    assert main(words, Environment(io.StringIO(), out, err)) == 0, err.getvalue()
    assert json.loads(out.getvalue())["text"] == replies[1]["text"]  # found beside the model
    assert replies[0]["text"] != replies[1]["text"]
    # Nine rows between their two marks and two pairs of empty lines.
    text = "user: What? model:"
    assert replies[0]["prompt_tokens"] == len(text) + 9 + 2 + 4
    which = Which.GGUF(str(tmp_path), MODEL, mmproj_filename=MMPROJ)
    shown = {"type": "image_url", "image_url": {"url": str(tmp_path / "0.png")}}
    parts = [shown, {"type": "text", "text": "What?"}]
    with Runner(which, cpu=True) as runner:
        request = ChatCompletionRequest(
            [{"role": "user", "content": parts}],
            max_tokens=12,
            temperature=0,
            frequency_penalty=0.1,
            presence_penalty=0.1,
        )
        response = runner.send_chat_completion_request(request)
    assert isinstance(response, ChatCompletionResponse)
    assert response.usage.prompt_tokens == replies[0]["prompt_tokens"]
    assert response.choices[0].message.content == replies[0]["text"]


def test_flags_for_images_need_what_sees(tmp_path: Path) -> None:
    err = io.StringIO()
    words = ["gguf", "-m", "demo", "--max-num-images", "2"]
    assert main(words, Environment(io.StringIO(), io.StringIO(), err)) == 2
    assert "--mmproj" in err.getvalue()
