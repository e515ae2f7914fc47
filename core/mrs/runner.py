"""The one face: plan a model, load it, stream its replies."""

from __future__ import annotations

import logging
import math
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from mrs.address_space import require_room_for_torch
from mrs.errors import MrsError
from mrs.events import DISK, LoadProgress, OnProgress
from mrs.families.find import Description, describe
from mrs.garbage import collector_paused
from mrs.interrupts import interrupts_held
from mrs.kernels.library import is_available
from mrs.loaded_model import LoadedModel, learn_speed
from mrs.plan.calibration import corrections, remember
from mrs.plan.device import Device
from mrs.plan.host_memory import forget_peak, resident_bytes
from mrs.plan.learnt import Pace
from mrs.plan.memory import probe_devices
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.plan.prefix import folder_bytes
from mrs.plan.reconcile import HostMeasured, Reconciliation, reconcile
from mrs.plan.saved import replay
from mrs.request import RunRequest
from mrs.source.find import fetch, open_checkpoint
from mrs.source.reader import expanded
from mrs.text.template_process import renderer

if TYPE_CHECKING:
    from mrs.cache.prefix_folder import PrefixFolder
    from mrs.engine.loop import EngineLoop
    from mrs.model.decoder import Decoder
    from mrs.model.weights import ModelWeights
    from mrs.source.checkpoint import Checkpoint
    from mrs.text.text_processor import TextProcessor

_logger = logging.getLogger(__name__)


@collector_paused()
def open_planner(request: RunRequest) -> Planner:
    """What a model and the devices are, from headers alone: makes the plans of a request."""
    checkpoint = open_checkpoint(request.source)
    vision = request.vision
    edge = vision.max_edge if vision else None
    description = describe(checkpoint, request.arch, sees=vision is not None, max_edge=edge)
    return _planner(request, checkpoint, description)


@collector_paused()
def plan(request: RunRequest, planner: Planner | None = None) -> Plan:
    """What `load` would do. A model that does not fit is planned all the same."""
    folder_bytes(request)  # nothing is planned that would be refused
    planner = planner or open_planner(request)
    if request.plan_file is not None:
        return replay(planner, request, expanded(request.plan_file))
    return planner.plan(request)


def load(request: RunRequest, on_progress: OnProgress | None = None) -> LoadedModel:
    """Plan, download what is missing, and load. Raises MrsError."""
    limit_bytes = folder_bytes(request)
    report = on_progress or (lambda progress: None)
    planner = open_planner(request)
    made = plan(request, planner)
    made.require_fit()
    planner = _fetched(request, planner, report)
    require_room_for_torch()
    renderer.start()  # ready by the time that all else is imported
    # Heavy imports start here: whatever fails above fails fast.
    with interrupts_held():  # all at once, so that the imports are not disturbed
        import mrs.engine.build
        import mrs.engine.reply
        import mrs.load.load  # noqa: F401
        from mrs.media.image_loader import ImageLoader

        text = _text_processor(request, planner)
    vision = planner.description.spec.vision
    if request.thinking is not None and not text.knows_thinking:
        _logger.warning("the chat template knows no thinking: --thinking changes nothing")
    image_loader = None
    if vision and request.vision:
        image_loader = ImageLoader(vision.layout, request.vision.max_edge)
    made = still_fitting(request, planner, made)
    folder = _prefix_folder(request, planner, made, limit_bytes)
    decoder = _load_decoder(planner, made, report)[0]
    return LoadedModel(request, made, text, _engine(request, made, decoder, folder), image_loader)


def rehearse(
    request: RunRequest, planner: Planner, made: Plan, on_progress: OnProgress | None = None
) -> Reconciliation:
    """Load what was planned, run its worst moment, and tell predicted from measured.

    What was measured is remembered for later plans on this machine. Raises MrsError.
    """
    made.require_fit()
    report = on_progress or (lambda progress: None)
    planner = _fetched(request, planner, report)
    require_room_for_torch()
    for variable, silent in (("KINETO_LOG_LEVEL", "99"), ("TORCH_CPP_LOG_LEVEL", "ERROR")):
        os.environ.setdefault(variable, silent)  # the profiler talks on standard error
    text = None
    with suppress(MrsError):  # a plan needs no tokenizer, but the memory of one counts
        text = _text_processor(request, planner)
    import mrs.engine.reply  # noqa: F401
    from mrs.engine.profile.run import measure, rehearse

    program_bytes = resident_bytes()
    forget_peak()
    decoder, weights = _load_decoder(planner, made, report)
    vision = made.vision
    seen = rehearse(
        decoder,
        made.load.context_tokens,
        made.load.chunk_tokens,
        images=vision.images if vision else 0,
        edge=vision.image_edge if vision else 0,
    )
    free_before = {device.torch_device: device.available_bytes for device in made.devices}
    result = reconcile(
        made,
        planner.corrections if request.calibration else {},
        measure(seen, weights, free_before),
        HostMeasured(program_bytes, seen.process_bytes),
        seen.prompt_tokens_per_s,
        seen.decode_tokens_per_s,
    )
    del text
    remember(result.corrections)
    pace = Pace()
    pace.add_step(1 / seen.decode_tokens_per_s if seen.decode_tokens_per_s else math.inf)
    pace.add_prompt(seen.prompt_tokens, seen.prompt_tokens / seen.prompt_tokens_per_s)
    learn_speed(made, pace)
    return result


def still_fitting(request: RunRequest, planner: Planner, made: Plan) -> Plan:
    """The plan, or a new one where a device has less memory now than the plan needs.

    A plan that was given is kept or refused. Raises DoesNotFit.
    """
    now = {device.label: device for device in _devices(request)}
    shrunk = any(
        device.label not in now or now[device.label].available_bytes < terms.needed_bytes
        for device, terms in zip(made.devices, made.terms, strict=True)
        if terms.is_used
    )
    if not shrunk:
        return made
    again = plan(request, _planner(request, planner.checkpoint, planner.description))
    again.require_fit()
    return again


def _text_processor(request: RunRequest, planner: Planner) -> TextProcessor:
    """Tokenizer and chat template of a model whose files are on this machine."""
    from mrs.text.text_processor import read_text_processor

    vision = planner.description.spec.vision
    return read_text_processor(
        planner.checkpoint,
        chat_template=request.chat_template,
        jinja_explicit=request.jinja_explicit,
        placeholder=vision.placeholder if vision else None,
        image_token_id=vision.image_token_id if vision else None,
    )


def _devices(request: RunRequest) -> list[Device]:
    return probe_devices(what_if=request.devices, cpu_only=request.cpu)


def _planner(request: RunRequest, checkpoint: Checkpoint, description: Description) -> Planner:
    devices = _devices(request)
    known = corrections(devices) if request.calibration and not request.devices else {}
    return Planner(checkpoint, description, devices, cpu_packs=is_available(), corrections=known)


def _fetched(request: RunRequest, planner: Planner, report: OnProgress) -> Planner:
    """The planner of the same model with all files on this machine."""
    if planner.checkpoint.is_local:
        return planner
    checkpoint = fetch(
        planner.checkpoint, lambda done, total: report(LoadProgress(DISK, done, total))
    )
    return _planner(request, checkpoint, planner.description)


def _load_decoder(planner: Planner, made: Plan, report: OnProgress) -> tuple[Decoder, ModelWeights]:
    # The plan counts GPUs as the management library does.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    import torch

    from mrs.kernels.memory import keep_freed_memory, use_one_heap
    from mrs.load.load import load_weights
    from mrs.load.tensor_reader import TORCH_DTYPES
    from mrs.model.decoder import Decoder

    use_one_heap()
    torch_devices = [torch.device(device.torch_device) for device in made.devices]
    totals = made.weight_bytes()
    done = dict.fromkeys(totals, 0)
    for index, total_bytes in totals.items():
        report(LoadProgress(made.devices[index].label, 0, total_bytes))

    def on_bytes(name: str, size_bytes: int) -> None:
        index = made.parameter_devices[name]
        done[index] += size_bytes
        report(LoadProgress(made.devices[index].label, done[index], totals[index]))

    weights = load_weights(
        planner.checkpoint,
        planner.description.parameters,
        made.storage,
        {name: torch_devices[index] for name, index in made.parameter_devices.items()},
        on_bytes,
    )
    keep_freed_memory()
    decoder = Decoder(
        planner.description.spec,
        weights,
        [torch_devices[index] for index in made.layer_devices],
        TORCH_DTYPES[made.dense.name],
    )
    return decoder, weights


def _prefix_folder(
    request: RunRequest, planner: Planner, made: Plan, limit_bytes: int | None
) -> PrefixFolder | None:
    """The folder that past sequences of this very model are kept in, if one is named."""
    if request.prefix_cache_dir is None or limit_bytes is None:
        return None
    from mrs.cache.prefix_folder import PrefixFolder
    from mrs.cache.prefix_key import prefix_key
    from mrs.load.identity import model_identity

    identity = model_identity(planner.checkpoint, made)
    return PrefixFolder(request.prefix_cache_dir, identity, limit_bytes, key=prefix_key())


def _engine(
    request: RunRequest, made: Plan, decoder: Decoder, folder: PrefixFolder | None
) -> EngineLoop:
    import torch

    from mrs.engine.build import EngineConfig, build_engine
    from mrs.engine.loop import EngineLoop

    budgets = made.prefix_budgets().items()
    config = EngineConfig(
        context_tokens=made.model.context_tokens,
        planned_tokens=made.load.context_tokens,
        planned_seqs=request.max_batch_size,
        max_seqs=request.max_seqs,
        kv_cache=request.kv_cache,
        seed=request.seed,
        prefix_cache_n=request.prefix_cache_n,
        prefix_budget_bytes={torch.device(name): size_bytes for name, size_bytes in budgets},
        prefix_folder=folder,
    )
    return EngineLoop(build_engine(decoder, config))
