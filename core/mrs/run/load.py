"""Loads a planned model: its text, its decoder or those of other processes, and its engine.

This imports torch and all else that runs a model; `ModelLoader.load` does so once, late.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import mrs.engine.reply
import mrs.load.load  # noqa: F401
from mrs.architecture.vision_spec import TimedTranscripts
from mrs.engine.model_engine import engine_of
from mrs.process.interrupts import interrupts_held
from mrs.run.draft import load_draft, require_draft_tokens
from mrs.run.loaded_model import LoadedModel
from mrs.run.planned_model import PlannedModel
from mrs.run.prompt_reader import PromptReader
from mrs.run.read_text import read_text
from mrs.run.request_memory import RequestMemory
from mrs.run.thinking_settings import ThinkingSettings
from mrs.source.suggested_sampling import suggested_sampling

if TYPE_CHECKING:
    from mrs.architecture.model_spec import ModelSpec
    from mrs.cache.prefix.disk import DiskPrefixCache
    from mrs.engine.loop import EngineLoop
    from mrs.events import OnProgress
    from mrs.run.transcription.speech_tokens import SpeechTokens
    from mrs.text.text_processor import TextProcessor

_logger = logging.getLogger(__name__)


def load(model: PlannedModel, memory: RequestMemory | None, report: OnProgress) -> LoadedModel:
    """The loaded model, whose files must be on this machine. Raises MrsError."""
    memory = memory or RequestMemory()
    with interrupts_held():
        text = read_text(model, memory.texts)
    require_draft_tokens(model.draft, text)
    thinking = ThinkingSettings(text, model.request)
    for line in thinking.notes():
        _logger.warning("%s", line)
    suggested = suggested_sampling(model.planner.checkpoint)
    cluster = None
    if model.request.cluster is None:
        engine = _engine(model, report)
    else:
        from mrs.distributed.cluster import Cluster

        cluster = Cluster.gather(model.request, model.planner, model.plan, model.rank_plans)
        model.settle(cluster.layout.request, cluster.layout.plan)
        try:
            engine = engine_of(model.request, model.plan, cluster.decoder(), None, None)
        except BaseException:
            cluster.close()
            raise
    prompts = _prompt_reader(model, memory, text, thinking, engine)
    if prompts.speech is not None:
        suggested = {"temperature": 0.0, **suggested}
    return LoadedModel(model.request, model.plan, prompts, engine, suggested, cluster=cluster)


def _engine(model: PlannedModel, report: OnProgress) -> EngineLoop:
    """The engine of a model that this process runs alone."""
    model.plan_again_if_memory_shrank()
    folder = _prefix_folder(model)
    decoder, weights = model.load_decoder(report)
    draft = load_draft(model, weights, report)
    return engine_of(model.request, model.plan, decoder, folder, draft)


def _prefix_folder(model: PlannedModel) -> DiskPrefixCache | None:
    """The prefix cache of this model on disk, if the request names a folder."""
    folder, limit_bytes = model.request.prefix_cache_dir, model.folder_bytes
    if folder is None or limit_bytes is None:
        return None
    from mrs.cache.prefix.disk import DiskPrefixCache
    from mrs.cache.prefix.signing_key import prefix_key
    from mrs.load.identity import model_identity

    identity = model_identity(model.planner.checkpoint, model.plan, model.request)
    return DiskPrefixCache(folder, identity, limit_bytes, key=prefix_key())


def _prompt_reader(
    model: PlannedModel,
    memory: RequestMemory,
    text: TextProcessor,
    thinking: ThinkingSettings,
    engine: EngineLoop,
) -> PromptReader:
    """The reader of prompts; it takes images, videos and audio only with a tower."""
    vision, wanted, budget = engine.spec.vision, model.request.vision, model.plan.budget
    media_loader = None
    if vision is not None and wanted is not None:
        from mrs.media.media_loader import MediaLoader

        most_bytes = None if budget is None else budget.pixels
        media_loader = MediaLoader(
            vision.image_layout,
            wanted.max_edge,
            vision.video,
            most_bytes,
            memory.media,
            audio=vision.audio_layout,
            max_audio_seconds=wanted.max_audio_seconds,
        )
    return PromptReader(
        engine.spec,
        text,
        thinking,
        engine.context_tokens,
        media_loader,
        None if budget is None else budget.grammars,
        _speech_tokens(model, text, engine.spec),
    )


def _speech_tokens(
    model: PlannedModel, text: TextProcessor, spec: ModelSpec
) -> SpeechTokens | None:
    """The tokens of a model that does nothing but transcribe. Raises NotReadable."""
    if spec.vision is None or not isinstance(spec.vision.transcripts, TimedTranscripts):
        return None
    from mrs.run.transcription.speech_tokens import read_speech_tokens

    files = model.planner.checkpoint
    configs = files.generation_config, files.config
    return read_speech_tokens(text.tokenizer, configs, spec.vocab_size, files.model_id)
