"""Load a tiny vision model as a run does, and give it images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor

from mrs.architecture.describe import describe
from mrs.architecture.description import Description
from mrs.architecture.vision_spec import Vision
from mrs.cache.cache_space import CacheSpace
from mrs.devices.probe import probe_devices
from mrs.engine.image_input import ImageInput, chunk_end, place_images
from mrs.engine.multimodal import sequence_input
from mrs.media.image_processors import PreparedImage, prepare_image
from mrs.media.log_mel import log_mel
from mrs.model.batch import forward_batch
from mrs.model.decoder import Decoder
from mrs.model.model_weights import ModelWeights
from mrs.plan.memory.cache_size import CacheSize
from mrs.plan.memory.stored_weights import ModelWeightsInfo
from mrs.plan.plan import Plan, make_plan
from mrs.request import AdapterRequest, Dtype, ModelSource, RunRequest, VisionRequest
from mrs.source.bound_adapters import add_adapters
from mrs.source.find import open_checkpoint
from support.planned_decoder import planned_decoder

CPU = torch.device("cpu")
PLANNED_TOKENS = 200


@dataclass(frozen=True)
class LoadedVisionModel:
    """A loaded model."""

    folder: Path
    description: Description
    plan: Plan
    weights: ModelWeights
    decoder: Decoder

    @property
    def vision(self) -> Vision:
        assert self.description.spec.vision is not None
        return self.description.spec.vision

    def prepare(self, images: Sequence[Any]) -> list[PreparedImage]:
        """Pictures, or sounds of a model that hears, as its tower takes them."""
        return [self._prepared(image, digest) for digest, image in enumerate(images, 7)]

    def _prepared(self, image: Any, digest: int) -> PreparedImage:
        if (layout := self.vision.image_layout) is not None:
            return prepare_image(layout, image, digest)
        audio = self.vision.audio_layout
        assert audio is not None
        spectrogram = log_mel(image.samples, audio.mel, audio.least)
        return PreparedImage(spectrogram, audio.shape(image.size), digest)

    def ids(self, text: str, images: Sequence[PreparedImage]) -> list[int]:
        """A prompt's ids, {} in it replaced by what stands for each image."""
        for number, image in enumerate(images):
            text = text.replace("{}", image.shape.text.replace("{n}", str(number)), 1)
        return Tokenizer.from_file(str(self.folder / "tokenizer.json")).encode(text).ids

    def shown(self, text: str, images: Sequence[Image.Image]) -> tuple[list[int], list[ImageInput]]:
        prepared = self.prepare(images)
        ids = self.ids(text, prepared)
        return ids, place_images(self.vision, ids, prepared)


def load_vision_model(
    folder: Path,
    dtype: Dtype = "f32",
    devices: Sequence[torch.device] = (CPU,),
    isq: str | None = None,
    source: ModelSource | None = None,
    with_vision: bool = True,
    adapters: Sequence[AdapterRequest] = (),
    seconds: int = 6,
) -> LoadedVisionModel:
    """The layers are spread over `devices` in equal runs; the rest sits on the first."""
    source = source or ModelSource(str(folder), "safetensors")
    checkpoint = open_checkpoint(source)
    request = RunRequest(
        source,
        dtype=dtype,
        isq=isq,
        cpu=True,
        max_seq_len=PLANNED_TOKENS,
        vision=VisionRequest(max_num_images=2, max_image_length=128, max_audio_seconds=seconds),
        adapters=tuple(adapters),
    )
    described = describe(checkpoint, with_vision=with_vision)
    checkpoint, description = add_adapters(checkpoint, described, request)
    host = probe_devices(what_if=(), cpu_only=True)
    made = make_plan(request, ModelWeightsInfo(checkpoint, description), host)
    weights, decoder = planned_decoder(checkpoint, description, made, devices)
    return LoadedVisionModel(folder, description, made, weights, decoder)


class Conversation:
    """One sequence of a decoder with pictures in it, fed in chunks."""

    def __init__(
        self,
        vision_model: LoadedVisionModel,
        chunk_tokens: int = 512,
        space: CacheSpace | None = None,
    ) -> None:
        self._decoder = vision_model.decoder
        self._chunk_tokens = chunk_tokens
        self._ids: list[int] = []
        self.space = space or vision_model.decoder.new_space(CacheSize(50, 1, chunk_tokens))
        self.cache = self.space.new()

    @torch.inference_mode()
    def feed(self, ids: Sequence[int], images: Sequence[ImageInput] = ()) -> Tensor:
        """Logits (T, V) after every token of `ids` that is new.

        `ids` are the whole conversation so far, and so are the places of `images`.
        """
        parts = []
        start = self.cache.length
        assert list(ids[:start]) == self._ids
        while start < len(ids):
            end = chunk_end(images, min(start + self._chunk_tokens, len(ids)), start=start)
            one = sequence_input(self._decoder, self.cache, images, ids[start:end], len(ids))
            one = one._replace(logits_rows=range(end - start))
            parts.append(self._decoder.forward(forward_batch([one]), [self.cache]))
            start = end
        self._ids = list(ids)
        return torch.cat(parts)


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Largest absolute difference over the largest absolute number."""
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    return float((ours.cpu() - theirs.detach()).abs().max() / theirs.detach().abs().max())
