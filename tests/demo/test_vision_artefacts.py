"""The files of the demo vision model agree with each other and with transformers."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoProcessor, CLIPImageProcessor, LlavaForConditionalGeneration

import mrs.demo
from demo_training.text.network import Shape as TextShape
from demo_training.vision.__main__ import Recipe, train
from demo_training.vision.dialogues import Dialogue, dialogues
from demo_training.vision.drawing import draw
from demo_training.vision.evaluate import held_out_images
from demo_training.vision.export import read_folder
from demo_training.vision.network import Shape, VisionShape
from demo_training.vision.pixels import pixels
from demo_training.vision.schedule import Course
from demo_training.vision.tower_training import scene_pixels
from demo_training.vision.vocabulary import IMAGE, IMAGE_ID, encode
from mrs.architecture.describe import describe
from mrs.request import ModelSource
from mrs.source.find import open_checkpoint

MODEL = Path(mrs.demo.__file__).parent / "vision_model"
PATCHES, SIDE = VisionShape().patches, VisionShape().image_size


@pytest.fixture(scope="module")
def theirs() -> LlavaForConditionalGeneration:
    return LlavaForConditionalGeneration.from_pretrained(MODEL, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def processor():
    return AutoProcessor.from_pretrained(MODEL)


def with_images(seed: int, count: int) -> list[Dialogue]:
    return [chat for chat in dialogues(seed, count) if chat.scenes]


def test_fits_in_six_megabytes() -> None:
    assert sum(path.stat().st_size for path in MODEL.iterdir()) <= 6_000_000


def test_tensors_on_which_no_reply_depends_need_no_word() -> None:
    """The end of a CLIP tower, which only its own training needs."""
    checkpoint = open_checkpoint(ModelSource(str(MODEL), "safetensors"))
    assert any("post_layernorm" in name for name in checkpoint.tensors)
    assert describe(checkpoint, with_vision=True).warnings == ()
    assert "vision_tower" in str(describe(checkpoint).warnings)  # as a model of texts


def test_language_matrices_take_every_block_quantization() -> None:
    text = json.loads((MODEL / "config.json").read_text(encoding="utf-8"))["text_config"]
    assert text["hidden_size"] % 256 == text["intermediate_size"] % 256 == 0
    assert text["num_attention_heads"] * text["head_dim"] % 256 == 0


def test_tensors_are_those_of_published_checkpoints(theirs: LlavaForConditionalGeneration) -> None:
    """Names as in llava-hf/llava-1.5-7b-hf, and none that transformers misses or leaves over."""
    ours = read_folder(MODEL, Shape())[0].state_dict()
    assert len(ours) == len(theirs.state_dict())
    assert {
        "language_model.lm_head.weight",
        "language_model.model.embed_tokens.weight",
        "language_model.model.layers.0.self_attn.q_proj.weight",
        "language_model.model.norm.weight",
        "multi_modal_projector.linear_1.bias",
        "multi_modal_projector.linear_2.weight",
        "vision_tower.vision_model.embeddings.class_embedding",
        "vision_tower.vision_model.embeddings.patch_embedding.weight",
        "vision_tower.vision_model.embeddings.position_embedding.weight",
        "vision_tower.vision_model.encoder.layers.0.layer_norm1.weight",
        "vision_tower.vision_model.encoder.layers.0.self_attn.out_proj.bias",
        "vision_tower.vision_model.post_layernorm.weight",
        "vision_tower.vision_model.pre_layrnorm.bias",
    } <= set(ours)


def test_transformers_computes_the_same(theirs: LlavaForConditionalGeneration) -> None:
    ours, tokenizer = read_folder(MODEL, Shape())
    for chat in with_images(3, 8):
        ((ids, _),) = encode(tokenizer, [chat], PATCHES)
        tokens, images = torch.tensor([ids]), scene_pixels(chat.scenes, SIDE)
        with torch.no_grad():
            expected = theirs(input_ids=tokens, pixel_values=images).logits
            logits = ours.logits(ours(tokens, images))
        torch.testing.assert_close(logits, expected, atol=2e-3, rtol=1e-3)


@pytest.mark.full
def test_chats_are_read_as_the_template_writes_them(processor) -> None:
    _, tokenizer = read_folder(MODEL, Shape())
    chats = list(dialogues(4, 60))
    for chat, (ids, _) in zip(chats, encode(tokenizer, chats, PATCHES), strict=True):
        text = processor.apply_chat_template(chat.messages(), tokenize=False)
        written = chat.written(IMAGE)
        assert text == "".join(
            f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in written
        )
        images = [draw(scene) for scene in chat.scenes]
        read = processor(text=text, images=images or None, return_tensors="pt")
        assert read["input_ids"][0].tolist() == ids
        assert ids.count(IMAGE_ID) == PATCHES * len(chat.scenes)
        if images:
            assert torch.allclose(read["pixel_values"], scene_pixels(chat.scenes, SIDE), atol=1e-5)


def test_template_puts_images_first_and_takes_plain_text(processor) -> None:
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image"}]
    for content, expected in (
        (parts, "<image>\nWhat is this?"),
        ([{"type": "image"}, {"type": "image"}], "<image>\n<image>"),
        (" Hello! ", "Hello!"),
    ):
        text = processor.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        assert text == f"<|im_start|>user\n{expected}<|im_end|>\n<|im_start|>assistant\n"


def test_processor_makes_the_pixels_that_were_trained_on() -> None:
    processor = CLIPImageProcessor.from_pretrained(MODEL)
    for chat in held_out_images(20):
        image = draw(chat.scenes[0])
        theirs = processor(image, return_tensors="pt")["pixel_values"][0]
        torch.testing.assert_close(pixels(image, 96), theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_transformers_answers(theirs: LlavaForConditionalGeneration, processor) -> None:
    """Greedy answers about held-out images, 95 of 100 of them to the letter."""
    right = 0
    chats = list(held_out_images(100))
    for chat in chats:
        text = processor.apply_chat_template(
            chat.messages()[:-1], tokenize=False, add_generation_prompt=True
        )
        read = processor(text=text, images=[draw(chat.scenes[0])], return_tensors="pt")
        ids = theirs.generate(**read, max_new_tokens=30)[0, read["input_ids"].shape[1] :]
        answer = processor.tokenizer.decode(ids, skip_special_tokens=True)
        right += answer == chat.turns[0].asked.answer
    assert right >= 0.95 * len(chats)


@pytest.mark.full
def test_training_writes_a_model_that_loads(tmp_path: Path) -> None:
    vision = VisionShape(
        patch_size=24, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2,
    )  # fmt: skip
    text = TextShape(
        vocab_size=768, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16,
    )  # fmt: skip
    tower = Course(count=8, batch=4, matrix_rate=0.02, other_rate=0.002)
    chat = Course(count=400, batch=2048, matrix_rate=0.02, other_rate=0.002)
    train(tmp_path, Recipe(tower, (chat, chat)), Shape(vision, text))
    model = LlavaForConditionalGeneration.from_pretrained(tmp_path)
    assert model.generation_config.eos_token_id == 2
    assert model.config.image_token_index == IMAGE_ID
    assert AutoProcessor.from_pretrained(tmp_path).patch_size == 24
