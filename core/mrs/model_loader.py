"""From a request to a loaded model: read headers, plan, download, load weights."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from mrs.adapters import add_adapters
from mrs.architecture.describe import describe
from mrs.architecture.description import Description
from mrs.devices.device import Device, without_reserved
from mrs.devices.host_memory import forget_peak, resident_bytes
from mrs.devices.probe import probe_devices
from mrs.errors import MrsError
from mrs.events import DISK, LoadProgress, OnProgress
from mrs.garbage import garbage_collection_paused
from mrs.kernels.cpu.library_file import is_available
from mrs.plan.calibration import corrections
from mrs.plan.memory.prefix_budget import folder_bytes
from mrs.plan.placement.kv_pool import pool_warnings
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner, draft_request
from mrs.plan.warnings import length_warnings
from mrs.request import ModelSource, RunRequest
from mrs.source.find import fetch, find_selector, open_checkpoint
from mrs.source.reader import expanded
from mrs.source.suggested_sampling import suggested_sampling

if TYPE_CHECKING:
    from mrs.cache.prefix.disk import DiskPrefixCache
    from mrs.distributed.cluster import Cluster
    from mrs.distributed.measure import MeasuredRun
    from mrs.distributed.shard import RankPlan
    from mrs.engine.engine_builder import DraftConfig
    from mrs.engine.loop import EngineLoop
    from mrs.loaded_model import LoadedModel
    from mrs.model.decoder import Decoder
    from mrs.model.model_weights import ModelWeights
    from mrs.plan.report.reconcile import Reconciliation
    from mrs.prompt_reader import PromptReader
    from mrs.source.checkpoint import Checkpoint
    from mrs.text.text_processor import TextProcessor
    from mrs.thinking_settings import ThinkingSettings

_logger = logging.getLogger(__name__)


class ModelLoader:
    """The steps from a request to a loaded model, each done once and when it is first needed.

    `planner` reads only headers, `plan` computes what `load` will do. `load` and `measure` download
    missing files and load the weights. Every step raises MrsError.
    """

    def __init__(self, request: RunRequest) -> None:
        self.request = request
        self._folder_bytes = folder_bytes(request)  # raises early for a bad folder
        if request.importance_file is not None:
            from mrs.engine.column_importance import check_importance

            check_importance(request)

    @cached_property
    def planner(self) -> Planner:
        """The planner of this model on the devices of the request."""
        vision = self.request.vision
        edge = vision.max_edge if vision else None
        with garbage_collection_paused():
            checkpoint = open_checkpoint(self.request.source)
            description = describe(
                checkpoint, self.request.arch, with_vision=vision is not None, max_edge=edge
            )
            return self._new_planner(*add_adapters(checkpoint, description, self.request))

    @cached_property
    def draft(self) -> ModelLoader | None:
        """The loader of the draft model, if the request names one and has not switched it off."""
        request = self.request
        if request.draft_model is None or request.speculate == "off":
            return None
        source = ModelSource(
            request.draft_model, "safetensors", token_source=request.source.token_source
        )
        if find_selector(source) == "gguf":
            source = replace(source, container="gguf")
        return ModelLoader(draft_request(request, source))

    @cached_property
    def plan(self) -> Plan:
        """What `load` will do. A model that does not fit has a plan as well."""
        plan = self._planned(self.planner)
        if self.request.calibration_file is None:
            return plan
        from mrs.engine.column_importance import with_calibration

        return with_calibration(plan, self)

    @cached_property
    def rank_plans(self) -> Sequence[RankPlan]:
        """The plans of the processes that share layers, if they share all of `plan`; or none."""
        cluster = self.request.cluster
        if cluster is None or cluster.group_size <= 1:
            return ()
        from mrs.distributed.shard import rank_plans

        return rank_plans(self.planner, self.plan, self.request, cluster.group_size)

    def settle(self, request: RunRequest, plan: Plan) -> None:
        """Use another request for the same model, and the plan that the planner made for it."""
        self.request, self.plan = request, plan

    def load(self, on_progress: OnProgress | None = None) -> LoadedModel:
        request, report = self.request, on_progress or _ignore
        from mrs.address_space import require_address_space_for_torch
        from mrs.interrupts import interrupts_held
        from mrs.loaded_model import LoadedModel
        from mrs.text.template_process import renderer
        from mrs.thinking_settings import ThinkingSettings
        from mrs.write_uqff import write_if_asked

        if request.cluster is None:
            self.plan.require_fit()
        size = pool_warnings(request.paged, self.plan.workload, self.plan.devices[0].kind)
        length = length_warnings(request, self.planner.description.spec)
        for line in (*self.planner.warnings, *length, *size):
            _logger.warning("%s", line)
        self._fetch(report)
        write_if_asked(self, report)
        require_address_space_for_torch()
        renderer.start()  # a process that starts while the imports below run
        # The heavy imports come last, so that every error above is raised quickly.
        with interrupts_held():  # all imports at once, so that Ctrl-C cannot break one
            import mrs.engine.model_engine
            import mrs.engine.reply
            import mrs.load.load
            import mrs.media.media_loader  # noqa: F401

            text = self._text_processor()
        self._check_draft_tokens(text)
        thinking = ThinkingSettings(text, request)
        for line in thinking.notes():
            _logger.warning("%s", line)
        suggested = suggested_sampling(self.planner.checkpoint)
        if request.cluster is not None:
            from mrs.distributed.cluster import Cluster

            cluster = Cluster.gather(request, self.planner, self.plan, self.rank_plans)
            self.settle(cluster.layout.request, cluster.layout.plan)
            engine = self._cluster_engine(cluster)
            prompts = self._prompt_reader(text, thinking, engine)
            return LoadedModel(self.request, self.plan, prompts, engine, suggested, cluster=cluster)
        self._plan_again_if_memory_shrank()
        folder = self._prefix_folder()
        decoder = self.load_decoder(report)[0]
        draft = self._load_draft(report)
        from mrs.engine.model_engine import engine_of

        engine = engine_of(request, self.plan, decoder, folder, draft)
        prompts = self._prompt_reader(text, thinking, engine)
        return LoadedModel(request, self.plan, prompts, engine, suggested)

    def measure(self, on_progress: OnProgress | None = None) -> Reconciliation:
        """Load the model, run the planned workload, and compare its memory with the plan.

        Later plans on this machine use the measurements. A draft model is left out.
        """
        from mrs.address_space import require_address_space_for_torch
        from mrs.plan.calibration import remember
        from mrs.plan.report.reconcile import HostMeasured, reconcile

        self.plan = self.plan.without_draft
        self.plan.require_fit()
        report = on_progress or _ignore
        self._fetch(report)
        require_address_space_for_torch()
        for variable, silent in (("KINETO_LOG_LEVEL", "99"), ("TORCH_CPP_LOG_LEVEL", "ERROR")):
            os.environ.setdefault(variable, silent)  # torch's profiler writes to standard error
        text = None
        with suppress(MrsError):  # a plan does not need a tokenizer, but its memory counts
            text = self._text_processor()
        import mrs.engine.reply  # noqa: F401
        from mrs.engine.profile.learn import learn_speed_of
        from mrs.engine.profile.run import measure, profile_run

        program_bytes = resident_bytes()
        forget_peak()
        decoder, weights = self.load_decoder(report)
        plan, vision = self.plan, self.plan.vision
        images, edge = (vision.images, vision.image_edge) if vision else (0, 0)
        profile = profile_run(decoder, plan.workload.cache, images=images, edge=edge)
        free_before = {device.torch_device: device.available_bytes for device in plan.devices}
        result = reconcile(
            plan,
            self.planner.corrections if self.request.calibration else {},
            measure(profile, weights, free_before),
            HostMeasured(program_bytes, profile.process_bytes),
            profile.prompt_tokens_per_s,
            profile.decode_tokens_per_s,
        )
        del text
        remember(result.corrections)
        learn_speed_of(profile, plan)
        return result

    def measure_processes(self, on_progress: OnProgress | None = None) -> MeasuredRun:
        """Load the model in the request's processes, and measure each of them and all together."""
        from mrs.address_space import require_address_space_for_torch
        from mrs.distributed.cluster import Cluster
        from mrs.distributed.measure import measure_run

        self._fetch(on_progress or _ignore)
        require_address_space_for_torch()
        assert self.request.cluster is not None
        # Nothing is measured again after a failure.
        once = replace(self.request.cluster, rejoin_limit_s=0.0)
        request = replace(self.request, cluster=once)
        cluster = Cluster.gather(request, self.planner, self.plan, self.rank_plans)
        try:
            return measure_run(cluster, cluster.decoder(), self.plan, request)
        finally:
            cluster.close()

    def _prompt_reader(
        self, text: TextProcessor, thinking: ThinkingSettings, engine: EngineLoop
    ) -> PromptReader:
        """It takes images and videos only with vision support."""
        from mrs.media.media_loader import MediaLoader
        from mrs.prompt_reader import PromptReader

        vision, wanted, budget = engine.spec.vision, self.request.vision, self.plan.budget
        media_loader = None
        if vision is not None and wanted is not None:
            most_bytes = None if budget is None else budget.pixels
            media_loader = MediaLoader(vision.layout, wanted.max_edge, vision.video, most_bytes)
        return PromptReader(
            engine.spec,
            text,
            thinking,
            engine.context_tokens,
            media_loader,
            None if budget is None else budget.grammars,
        )

    def _new_planner(self, checkpoint: Checkpoint, description: Description) -> Planner:
        request, devices = self.request, self._devices()
        known = corrections(devices) if request.calibration and not request.devices else {}
        return Planner(
            checkpoint,
            description,
            devices,
            cpu_packs=is_available(),
            corrections=known,
            draft=self.draft.planner if self.draft else None,
        )

    def _devices(self) -> list[Device]:
        request = self.request
        devices = probe_devices(what_if=request.devices, cpu_only=request.cpu)
        return without_reserved(devices, dict(request.reserved_bytes))

    def _planned(self, planner: Planner) -> Plan:
        with garbage_collection_paused():
            if self.request.plan_file is not None:
                from mrs.plan.report.replay import replay

                return replay(planner, self.request, expanded(self.request.plan_file))
            if self.request.cluster is not None:
                from mrs.distributed.shard import one_device_plan

                return one_device_plan(planner, self.request)
            return planner.plan(self.request)

    def _fetch(self, report: OnProgress) -> None:
        """Download the files of the model that are not on this machine."""
        planner = self.planner
        if not planner.checkpoint.is_local:
            planner.checkpoint = fetch(
                planner.checkpoint, lambda done, total: report(LoadProgress(DISK, done, total))
            )

    def _check_draft_tokens(self, text: TextProcessor) -> None:
        """Download the draft model's files. Raises UsageError if its tokens are others."""
        if self.draft is None:
            return
        from mrs.text.same_tokens import require_same_tokens
        from mrs.text.text_processor import read_tokenizer

        self.draft._fetch(_ignore)
        drafted = read_tokenizer(self.draft.planner.checkpoint)
        require_same_tokens(text.tokenizer, drafted, self.draft.request.source.model_id)

    def _load_draft(self, report: OnProgress) -> DraftConfig | None:
        if self.draft is None or self.plan.draft is None:
            return None
        from mrs.engine.engine_builder import DraftConfig

        self.draft.settle(self.draft.request, self.plan.draft)
        decoder = self.draft.load_decoder(report)[0]
        draft, plan = self.plan.draft, self.plan
        return DraftConfig(
            decoder,
            draft.model.context_tokens,
            draft.workload.cache,
            cost=plan.speed.decode.middle / draft.speed.decode.middle,
        )

    def _plan_again_if_memory_shrank(self) -> None:
        """Plan again if a device has less free memory now than the plan needs.

        A plan from a file is used unchanged or refused. Raises DoesNotFit.
        """
        plan = self.plan
        now = {device.label: device for device in self._devices()}
        shrunk = any(
            device.label not in now or now[device.label].available_bytes < terms.needed_bytes
            for device, terms in zip(plan.devices, plan.breakdowns, strict=True)
            if terms.is_used
        )
        if shrunk:
            self.planner = self._new_planner(self.planner.checkpoint, self.planner.description)
            self.plan = self._planned(self.planner)
            self.plan.require_fit()

    def _text_processor(self) -> TextProcessor:
        """The tokenizer and chat template; the model's files must be on this machine."""
        from mrs.text.text_processor import read_text_processor

        vision = self.planner.description.spec.vision
        video = vision.video if vision else None
        return read_text_processor(
            self.planner.checkpoint,
            chat_template=self.request.chat_template,
            jinja_explicit=self.request.jinja_explicit,
            placeholder=vision.placeholder if vision else None,
            video_placeholder=video.placeholder if video else None,
            video_token_id=video.token_id if video else None,
            image_token_id=vision.image_token_id if vision else None,
            image_edge=vision.edge if vision else None,
        )

    def load_decoder(
        self, report: OnProgress, wrap: Callable[[ModelWeights], ModelWeights] = lambda each: each
    ) -> tuple[Decoder, ModelWeights]:
        """The decoder on its devices, and its weights as `wrap` returns them. Raises MrsError."""
        # Number the GPUs as NVIDIA's management library does, which the plan uses.
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        import torch

        from mrs.engine.column_importance import column_importance
        from mrs.load.load import load_to_run
        from mrs.load.progress import weights_progress
        from mrs.load.tensor_reader import TORCH_DTYPES
        from mrs.model.decoder import Decoder
        from mrs.quantization.gguf.unquantized import DTYPES

        plan, planner = self.plan, self.planner
        torch_devices = [torch.device(device.torch_device) for device in plan.devices]
        loaded = load_to_run(
            planner.checkpoint,
            planner.description.parameters,
            plan.storage,
            {name: torch_devices[index] for name, index in plan.parameter_devices.items()},
            weights_progress(plan, report),
            column_importance(self, report),
        )
        weights = wrap(loaded)
        decoder = Decoder(
            planner.description.spec,
            weights,
            [torch_devices[index] for index in plan.layer_devices],
            TORCH_DTYPES[plan.dense.name],
            DTYPES[plan.cache_format.name],
            adapters=planner.description.adapters,
        )
        return decoder, weights

    def _cluster_engine(self, cluster: Cluster) -> EngineLoop:
        """The engine of a model of which other processes compute a part."""
        from mrs.engine.model_engine import engine_of

        try:
            return engine_of(self.request, self.plan, cluster.decoder(), None, None)
        except BaseException:
            cluster.close()
            raise

    def _prefix_folder(self) -> DiskPrefixCache | None:
        """The prefix cache of this model on disk, if the request names a folder."""
        folder, limit_bytes = self.request.prefix_cache_dir, self._folder_bytes
        if folder is None or limit_bytes is None:
            return None
        from mrs.cache.prefix.disk import DiskPrefixCache
        from mrs.cache.prefix.signing_key import prefix_key
        from mrs.load.identity import model_identity

        identity = model_identity(self.planner.checkpoint, self.plan, self.request)
        return DiskPrefixCache(folder, identity, limit_bytes, key=prefix_key())


def _ignore(progress: LoadProgress) -> None:
    pass
