"""Models that hear, tiny and random, and what transformers makes of sound with them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers.models.qwen3_asr.feature_extraction_qwen3_asr import Qwen3ASRFeatureExtractor
from vision_case import TEXT, WORDS, VisionCase, make_tokenizer
from vision_reference import PROMPTS, REPLY_TOKENS, SECOND_TURN, Truth, VisionReference, randomize

from mrs.families.vision.qwen3_asr import TOKEN
from support.tiny_qwen3_asr import TOWER


@dataclass(frozen=True)
class Sound:
    """Samples (N,) that stand for the picture in a case."""

    samples: NDArray[np.float32]

    @property
    def size(self) -> int:
        return len(self.samples)

    def resize(self, size: int) -> Sound:
        return Sound(np.resize(self.samples, size))


def sound(seconds: float, seed: int) -> Sound:
    """Noise that swells and fades, with a tone in it."""
    count = round(16_000 * seconds)
    noise = np.random.default_rng(seed).normal(size=count)
    t = np.arange(count) / 16_000
    tone = np.sin(2 * np.pi * (300 + 200 * seed) * t)
    return Sound(((0.2 * noise + tone) * 0.3 * np.abs(np.sin(3 * t))).astype(np.float32))


@torch.no_grad()
def make_audio_reference(case: VisionCase, folder: Path) -> VisionReference:
    torch.manual_seed(sum(map(ord, case.id)) + case.seed)
    config = transformers.AutoConfig.for_model(case.family, **case.config)
    model = transformers.AutoModelForMultimodalLM.from_config(config, attn_implementation="eager")
    model = model.float().eval()
    randomize(model)
    tokenizer, extract = make_tokenizer(case.specials), case.processor(None)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    settings = {"feature_extractor": extract.to_dict()}
    (folder / "processor_config.json").write_text(json.dumps(settings))
    # The lengths are in hundredths of a second: one window, several with a rest, and a short one.
    sounds = [sound(hundredths / 100, n) for n, (hundredths, _) in enumerate(case.sizes)]

    def inputs(text: str, heard: Sequence[Sound]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        if heard:
            made = dict(
                extract(
                    [each.samples for each in heard],
                    sampling_rate=16_000,
                    padding=True,
                    return_attention_mask=True,
                )
            )
            made["input_features_mask"] = made.pop("attention_mask")
            for frames in made["input_features_mask"].sum(-1).tolist():
                text = text.replace("{}", TOKEN * rows_of(frames), 1)
        return {**tokenizer([text], return_tensors="pt"), **made}

    def truth(text: str, heard: Sequence[Sound]) -> Truth:
        given = inputs(text, heard)
        ids, logits = given["input_ids"][0].tolist(), alone(given).logits[0]
        return Truth(text, tuple(heard), ids, logits, torch.zeros(len(ids), dtype=torch.bool))

    def alone(given: dict[str, Any]) -> Any:
        """One after another: in a batch, a short sound would have the windows of a long one."""
        if "input_features" not in given:
            return model(**given)
        features, masks = given["input_features"], given["input_features_mask"]
        rows = [
            model.get_audio_features(one[None], mask[None]).pooler_output
            for one, mask in zip(features, masks, strict=True)
        ]
        embedded = model.get_input_embeddings()(given["input_ids"])
        embedded[given["input_ids"] == WORDS] = torch.cat(rows)
        return model(inputs_embeds=embedded)

    prompts = [truth(text, sounds[:count]) for count, text in enumerate(PROMPTS)]
    second = truth(f"{PROMPTS[1]} {SECOND_TURN}", [sounds[0], sounds[2]])
    given = inputs(PROMPTS[1], sounds[:1])
    made = model.generate(
        **given, max_new_tokens=REPLY_TOKENS, min_new_tokens=REPLY_TOKENS, do_sample=False
    )
    reply = made[0, given["input_ids"].shape[1] :].tolist()

    def spectrogram(heard: Sound) -> torch.Tensor:
        features = extract(heard.samples, sampling_rate=16_000, padding=True)["input_features"]
        return torch.as_tensor(features)[0]

    return VisionReference(case, folder, tuple(prompts), second, reply, spectrogram)


def rows_of(frames: int) -> int:
    """What the processor has as a formula: 13 for each whole second."""
    left = frames % 100
    for _ in range(3):
        left = (left + 1) // 2
    return 13 * (frames // 100) + left


def audio_case(name: str, text: dict[str, Any], tower: dict[str, Any]) -> VisionCase:
    bands = tower["num_mel_bins"]
    return VisionCase(
        "qwen3_asr",
        name,
        {
            "audio_config": tower,
            "text_config": text,
            "audio_token_id": WORDS,
            "tie_word_embeddings": text["tie_word_embeddings"],
        },
        lambda _: Qwen3ASRFeatureExtractor(feature_size=bands),
        specials=(TOKEN, "<|audio_start|>", "<|audio_end|>"),
        placeholder=TOKEN,
        sizes=((93, 1), (437, 1), (21, 1)),
        reference=make_audio_reference,
        show=lambda width, height, seed: sound(width * height / 1000, seed),
    )


_TEXT: dict[str, Any] = {**TEXT, "head_dim": 24, "tie_word_embeddings": True}
_TOWER: dict[str, Any] = {"num_mel_bins": 16, **TOWER}
AUDIO = (
    audio_case("default", _TEXT, _TOWER),
    audio_case(
        "odd",
        {
            **_TEXT,
            "num_key_value_heads": 1,
            "attention_bias": True,
            "rms_norm_eps": 1e-4,
            "tie_word_embeddings": False,
        },
        {
            **_TOWER,
            "num_mel_bins": 21,
            "encoder_layers": 3,
            "encoder_attention_heads": 3,
            "d_model": 36,
            "downsample_hidden_size": 5,
            "n_window_infer": 100,
            "activation_function": "silu",
        },
    ),
)
