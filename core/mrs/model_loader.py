"""From a request to a loaded model: headers, plan, download, weights."""

from __future__ import annotations

import logging
import math
import os
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from mrs.address_space import require_room_for_torch
from mrs.architecture.describe import Description, describe
from mrs.devices.device import Device
from mrs.devices.host_memory import forget_peak, resident_bytes
from mrs.devices.probe import probe_devices
from mrs.errors import MrsError
from mrs.events import DISK, LoadProgress, OnProgress
from mrs.garbage import collector_paused
from mrs.interrupts import interrupts_held
from mrs.kernels.cpu.library import is_available
from mrs.loaded_model import LoadedModel, learn_speed
from mrs.plan.calibration import corrections, remember
from mrs.plan.memory.prefix_budget import folder_bytes
from mrs.plan.placement.paged import pool_remarks
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner
from mrs.plan.report.reconcile import HostMeasured, Reconciliation, reconcile
from mrs.plan.report.replay import replay
from mrs.plan.speed.learnt import Pace
from mrs.request import RunRequest
from mrs.source.find import fetch, open_checkpoint
from mrs.source.reader import expanded
from mrs.text.template_process import renderer

if TYPE_CHECKING:
    from mrs.cache.prefix.disk import DiskPrefixCache
    from mrs.engine.loop import EngineLoop
    from mrs.model.decoder import Decoder
    from mrs.model.weights import ModelWeights
    from mrs.source.checkpoint import Checkpoint
    from mrs.text.chat import TextSide

_logger = logging.getLogger(__name__)


class ModelLoader:
    """A request on its way to a loaded model; every step completes it and is done once.

    `planner` reads headers alone, `plan` says what `load` will do, `load` and `measure` download
    what is missing and do it. Every step raises MrsError.
    """

    def __init__(self, request: RunRequest) -> None:
        self.request = request
        self._folder_bytes = folder_bytes(request)  # nothing is planned that would be refused

    @cached_property
    def planner(self) -> Planner:
        """Makes plans of this model for the devices of the request."""
        vision = self.request.vision
        edge = vision.max_edge if vision else None
        with collector_paused():
            checkpoint = open_checkpoint(self.request.source)
            description = describe(
                checkpoint, self.request.arch, with_vision=vision is not None, max_edge=edge
            )
            return self._new_planner(checkpoint, description)

    @cached_property
    def plan(self) -> Plan:
        """What `load` will do. A model that does not fit has a plan, too."""
        return self._planned(self.planner)

    def settle(self, request: RunRequest, plan: Plan) -> None:
        """Take another request for the same model, whose plan the planner has made."""
        self.request, self.plan = request, plan

    def load(self, on_progress: OnProgress | None = None) -> LoadedModel:
        report = on_progress or _ignore
        self.plan.require_fit()
        for line in pool_remarks(self.request.paged, self.plan.load, self.plan.devices[0].kind):
            _logger.warning("%s", line)
        self._fetch(report)
        require_room_for_torch()
        renderer.start()  # ready by the time that all else is imported
        # Heavy imports start here: whatever fails above fails fast.
        with interrupts_held():  # all at once, so that the imports are not disturbed
            import mrs.engine.build
            import mrs.engine.reply
            import mrs.load.load  # noqa: F401
            from mrs.media.gallery import Gallery

            text = self._text_side()
        request = self.request
        if request.thinking is not None and not text.knows_thinking:
            _logger.warning("the chat template knows no thinking: --thinking changes nothing")
        vision = self.planner.description.spec.vision
        gallery = None
        if vision and request.vision:
            gallery = Gallery(vision.layout, request.vision.max_edge)
        self._plan_again_if_memory_shrank()
        folder = self._prefix_folder()
        decoder = self._load_decoder(report)[0]
        engine = _engine(request, self.plan, decoder, folder)
        return LoadedModel(request, self.plan, text, engine, gallery)

    def measure(self, on_progress: OnProgress | None = None) -> Reconciliation:
        """Load what was planned, run its worst moment, and compare what it took with the plan.

        Later plans on this machine remember what was measured.
        """
        self.plan.require_fit()
        report = on_progress or _ignore
        self._fetch(report)
        require_room_for_torch()
        for variable, silent in (("KINETO_LOG_LEVEL", "99"), ("TORCH_CPP_LOG_LEVEL", "ERROR")):
            os.environ.setdefault(variable, silent)  # the profiler talks on standard error
        text = None
        with suppress(MrsError):  # a plan needs no tokenizer, but the memory of one counts
            text = self._text_side()
        import mrs.engine.reply  # noqa: F401
        from mrs.engine.profile.run import measure, profile_run

        program_bytes = resident_bytes()
        forget_peak()
        decoder, weights = self._load_decoder(report)
        plan = self.plan
        vision = plan.vision
        seen = profile_run(
            decoder,
            plan.load.cache,
            images=vision.images if vision else 0,
            edge=vision.image_edge if vision else 0,
        )
        free_before = {device.torch_device: device.available_bytes for device in plan.devices}
        result = reconcile(
            plan,
            self.planner.corrections if self.request.calibration else {},
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
        learn_speed(plan, pace)
        return result

    def _new_planner(self, checkpoint: Checkpoint, description: Description) -> Planner:
        request, devices = self.request, self._devices()
        known = corrections(devices) if request.calibration and not request.devices else {}
        return Planner(
            checkpoint, description, devices, cpu_packs=is_available(), corrections=known
        )

    def _devices(self) -> list[Device]:
        return probe_devices(what_if=self.request.devices, cpu_only=self.request.cpu)

    def _planned(self, planner: Planner) -> Plan:
        with collector_paused():
            if self.request.plan_file is not None:
                return replay(planner, self.request, expanded(self.request.plan_file))
            return planner.plan(self.request)

    def _fetch(self, report: OnProgress) -> None:
        """Have all files of the model on this machine."""
        planner = self.planner
        if not planner.checkpoint.is_local:
            planner.checkpoint = fetch(
                planner.checkpoint, lambda done, total: report(LoadProgress(DISK, done, total))
            )

    def _plan_again_if_memory_shrank(self) -> None:
        """A new plan where a device has less memory now than the plan needs.

        A plan that was given is kept or refused. Raises DoesNotFit.
        """
        plan = self.plan
        now = {device.label: device for device in self._devices()}
        shrunk = any(
            device.label not in now or now[device.label].available_bytes < terms.needed_bytes
            for device, terms in zip(plan.devices, plan.terms, strict=True)
            if terms.is_used
        )
        if shrunk:
            self.planner = self._new_planner(self.planner.checkpoint, self.planner.description)
            self.plan = self._planned(self.planner)
            self.plan.require_fit()

    def _text_side(self) -> TextSide:
        """Tokenizer and chat template of a model whose files are on this machine."""
        from mrs.text.chat import read_text_side

        vision = self.planner.description.spec.vision
        return read_text_side(
            self.planner.checkpoint,
            chat_template=self.request.chat_template,
            jinja_explicit=self.request.jinja_explicit,
            placeholder=vision.placeholder if vision else None,
            image_token_id=vision.image_token_id if vision else None,
        )

    def _load_decoder(self, report: OnProgress) -> tuple[Decoder, ModelWeights]:
        # The plan counts GPUs as the management library does.
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        import torch

        from mrs.kernels.cpu.weight_memory import keep_freed_memory, use_one_heap
        from mrs.load.load import load_weights
        from mrs.load.tensor_reader import TORCH_DTYPES
        from mrs.model.decoder import Decoder

        use_one_heap()
        plan, planner = self.plan, self.planner
        torch_devices = [torch.device(device.torch_device) for device in plan.devices]
        totals = plan.weight_bytes()
        done = dict.fromkeys(totals, 0)
        for index, total_bytes in totals.items():
            report(LoadProgress(plan.devices[index].label, 0, total_bytes))

        def on_bytes(name: str, size_bytes: int) -> None:
            index = plan.parameter_devices[name]
            done[index] += size_bytes
            report(LoadProgress(plan.devices[index].label, done[index], totals[index]))

        weights = load_weights(
            planner.checkpoint,
            planner.description.parameters,
            plan.storage,
            {name: torch_devices[index] for name, index in plan.parameter_devices.items()},
            on_bytes,
        )
        keep_freed_memory()
        decoder = Decoder(
            planner.description.spec,
            weights,
            [torch_devices[index] for index in plan.layer_devices],
            TORCH_DTYPES[plan.dense.name],
            TORCH_DTYPES[plan.cache_format.name],
        )
        return decoder, weights

    def _prefix_folder(self) -> DiskPrefixCache | None:
        """The folder that past sequences of this very model are kept in, if one is named."""
        folder, limit_bytes = self.request.prefix_cache_dir, self._folder_bytes
        if folder is None or limit_bytes is None:
            return None
        from mrs.cache.prefix.disk import DiskPrefixCache
        from mrs.cache.prefix.signing_key import prefix_key
        from mrs.load.identity import model_identity

        identity = model_identity(self.planner.checkpoint, self.plan)
        return DiskPrefixCache(folder, identity, limit_bytes, key=prefix_key())


def _engine(
    request: RunRequest, made: Plan, decoder: Decoder, folder: DiskPrefixCache | None
) -> EngineLoop:
    import torch

    from mrs.engine.build import EngineConfig, build_engine
    from mrs.engine.loop import EngineLoop

    budgets = made.prefix_budgets().items()
    config = EngineConfig(
        context_tokens=made.model.context_tokens,
        planned_tokens=made.load.context_tokens,
        planned_seqs=made.load.batch,
        block_tokens=made.load.block_tokens,
        pool_blocks=made.load.pool_blocks,
        max_seqs=request.max_seqs,
        kv_cache=request.kv_cache,
        seed=request.seed,
        prefix_cache_n=request.prefix_cache_n,
        prefix_budget_bytes={torch.device(name): size_bytes for name, size_bytes in budgets},
        prefix_folder=folder,
    )
    return EngineLoop(build_engine(decoder, config))


def _ignore(progress: LoadProgress) -> None:
    pass
