"""From a request to a plan, and to the weights in memory: read headers, plan, download, load."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from mrs.architecture.describe import describe
from mrs.architecture.description import Description
from mrs.architecture.draft_head import each_head
from mrs.devices.device import Device, without_reserved
from mrs.devices.probe import probe_devices
from mrs.events import DISK, LoadProgress, OnProgress
from mrs.kernels.cpu.library_file import is_available
from mrs.plan.calibration import corrections
from mrs.plan.memory.prefix_budget import folder_bytes
from mrs.plan.plan import Plan
from mrs.plan.planner import Planner, draft_request
from mrs.process.garbage import garbage_collection_paused
from mrs.process.promises import promised_to_others
from mrs.request import ModelSource, RunRequest
from mrs.source.bound_adapters import add_adapters
from mrs.source.find import fetch, find_selector, open_checkpoint
from mrs.source.reader import expanded
from mrs.units import human_bytes

if TYPE_CHECKING:
    from mrs.architecture.model_spec import ModelSpec
    from mrs.distributed.shard import RankPlan
    from mrs.load.layer_files import LayerFiles
    from mrs.model.decoder import Decoder
    from mrs.model.model_weights import ModelWeights
    from mrs.source.checkpoint import Checkpoint

_logger = logging.getLogger(__name__)
#: A share of the free memory that others may take without a word.
_MUCH_OF_MEMORY = 0.1


class PlannedModel:
    """The steps from a request to a plan, and to a decoder that has loaded its weights.

    Each is done once and when it is first needed: `planner` reads only headers, `plan` computes
    what is loaded, `fetch` downloads what is missing. Every step raises MrsError.
    """

    def __init__(self, request: RunRequest) -> None:
        self.request = request
        self._has_told = False
        #: What the prefix cache may have in the request's folder.
        self.folder_bytes = folder_bytes(request)  # raises early for a bad folder
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
    def draft(self) -> PlannedModel | None:
        """The draft model, if the request names one and has not switched it off."""
        request = self.request
        if request.draft_model is None or request.speculate == "off":
            return None
        source = ModelSource(
            request.draft_model, "safetensors", token_source=request.source.token_source
        )
        if find_selector(source) == "gguf":
            source = replace(source, container="gguf")
        return PlannedModel(draft_request(request, source))

    @property
    def head(self) -> PlannedModel | None:
        """The model's own draft head, if it is planned and no draft model is."""
        planner = self.planner.draft
        if planner is None or not planner.is_head:
            return None
        planner.checkpoint = self.planner.checkpoint  # whose files have been downloaded
        head = PlannedModel(draft_request(self.request, self.request.source))
        head.planner = planner
        return head

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

    def plan_again(self) -> None:
        """Plan with what was measured since."""
        self.plan = self._planned(self.planner)

    def fetch(self, report: OnProgress) -> None:
        """Download the files of the model that are not on this machine."""
        planner = self.planner
        if not planner.checkpoint.is_local:
            planner.checkpoint = fetch(
                planner.checkpoint, lambda done, total: report(LoadProgress(DISK, done, total))
            )

    def plan_again_if_memory_shrank(self) -> None:
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

    def load_decoder(
        self,
        report: OnProgress,
        wrap: Callable[[ModelWeights], ModelWeights] = lambda each: each,
    ) -> tuple[Decoder, ModelWeights]:
        """The decoder on its devices, and its weights as `wrap` returns them. Raises MrsError."""
        layer_files = self._layer_files(report)
        weights = wrap(self._load_weights(report, layer_files))
        decoder = self._decoder(self.planner.description.spec, weights, layer_files)
        if layer_files is not None:
            layer_files.require_asking()
        return decoder, weights

    def load_drafters(
        self, report: OnProgress, shared: ModelWeights | None = None
    ) -> Sequence[Decoder]:
        """The decoder of a draft model, or one for each draft head. Raises MrsError.

        Heads have the weights that are not their own from those of their target, `shared`.
        """
        if shared is None:
            return [self.load_decoder(report)[0]]
        spec, parameters = self.planner.description.spec, self.planner.description.parameters
        names = [each.name for each in parameters if each.is_shared]
        weights = self._load_weights(report).with_shared(shared, names)
        heads = [weights.of_head(index) for index in range(len(spec.layers))]
        return [self._decoder(each_head(spec), each) for each in heads]

    def _load_weights(
        self, report: OnProgress, layer_files: LayerFiles | None = None
    ) -> ModelWeights:
        # Number the GPUs as NVIDIA's management library does, which the plan uses.
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        import torch

        from mrs.engine.column_importance import column_importance
        from mrs.load.load import load_to_run
        from mrs.load.progress import weights_progress

        plan, planner = self.plan, self.planner
        torch_devices = [torch.device(device.torch_device) for device in plan.devices]
        own = [each for each in planner.description.parameters if not each.is_shared]
        devices = plan.parameter_devices
        return load_to_run(
            planner.checkpoint,
            own,
            plan.storage,
            {each.name: torch_devices[devices[each.name]] for each in own},
            weights_progress(plan, report),
            column_importance(self, report),
            layer_files,
        )

    def _decoder(
        self, spec: ModelSpec, weights: ModelWeights, layer_files: LayerFiles | None = None
    ) -> Decoder:
        """The decoder of the first layers of the plan, as many as `spec` has."""
        import torch

        from mrs.load.tensor_reader import TORCH_DTYPES
        from mrs.model.decoder import Decoder
        from mrs.quantization.kv_type import kv_type

        plan = self.plan
        devices = [plan.devices[index] for index in plan.layer_devices[: len(spec.layers)]]
        return Decoder(
            spec,
            weights,
            [torch.device(device.torch_device) for device in devices],
            TORCH_DTYPES[plan.dense.name],
            kv_type(plan.cache_format.name),
            adapters=self.planner.description.adapters,
            on_disk=None if layer_files is None else layer_files.layers,
        )

    def _layer_files(self, report: OnProgress) -> LayerFiles | None:
        """The files of the layers that stay on disk, if there are any."""
        on_disk = self.plan.on_disk
        if not on_disk:
            return None
        from mrs.load.identity import layers_identity
        from mrs.load.layer_files import LayerFiles, folder_of

        key = layers_identity(self.planner.checkpoint, self.plan, self.request)
        folder = folder_of(self.request.source.model_id, key)
        return LayerFiles(
            folder, key, on_disk.layouts, on_disk.expert_slots, on_disk.tables, report
        )

    def _new_planner(self, checkpoint: Checkpoint, description: Description) -> Planner:
        request, devices = self.request, self._devices()
        reason = None
        if description.head is not None and self._wants_head:
            reason = self._reason_without_head
        if reason and request.mtp:
            line = f"the model's draft head is not used: {reason}"
            others = (each for each in description.warnings if each != line)
            description = replace(description, warnings=(*others, line))
        known = corrections(devices) if request.calibration and not request.devices else {}
        return Planner(
            checkpoint,
            description,
            devices,
            cpu_packs=is_available() and not request.exact,
            corrections=known,
            draft=self.draft.planner if self.draft else self._head_planner(checkpoint, description),
            without_head=reason or "",
        )

    def _head_planner(self, checkpoint: Checkpoint, description: Description) -> Planner | None:
        """The planner of the model's own draft head, if a run may use it."""
        if description.head is None or not self._wants_head or self._reason_without_head:
            return None
        return Planner(checkpoint, description.head, self._devices(), cpu_packs=is_available())

    @property
    def _wants_head(self) -> bool:
        request = self.request
        return request.mtp is not False and request.speculate != "off" and self.draft is None

    @cached_property
    def _reason_without_head(self) -> str | None:
        """Why a draft head cannot be used in this run, if it cannot."""
        if self.request.cluster is not None:
            return "several processes compute the model"
        if not self.request.kv_cache:
            return "there is no KV cache"
        if self._devices()[0].torch_device != "cpu":
            return "it runs on CPUs only so far"
        return None

    def _devices(self) -> list[Device]:
        request = self.request
        devices = probe_devices(what_if=request.devices, cpu_only=request.cpu)
        reserved = Counter(dict(request.reserved_bytes))
        if not request.devices:
            in_host = [each for each in devices if each.kind == "cpu" or each.shares_host_memory]
            promised_bytes = self._promised_bytes(min(each.available_bytes for each in in_host))
            for device in in_host:
                reserved[device.label] += promised_bytes
        return without_reserved(devices, reserved)

    def _promised_bytes(self, available_bytes: int) -> int:
        """Host memory that other processes of this user will take; said once, if it is much."""
        others = promised_to_others()
        if others.size_bytes and not self._has_told:
            self._has_told = True
            matters = others.size_bytes > _MUCH_OF_MEMORY * available_bytes
            _logger.log(
                logging.WARNING if matters else logging.INFO,
                "%s of memory are left to %d other process%s of mrs",
                human_bytes(others.size_bytes),
                others.processes,
                "es" if others.processes > 1 else "",
            )
        return others.size_bytes

    def _planned(self, planner: Planner) -> Plan:
        with garbage_collection_paused():
            if self.request.plan_file is not None:
                from mrs.plan.report.replay import replay

                return replay(planner, self.request, expanded(self.request.plan_file))
            if self.request.cluster is not None:
                from mrs.distributed.shard import one_device_plan

                return one_device_plan(planner, self.request)
            return planner.plan(self.request)


def no_report(progress: LoadProgress) -> None:
    """Tells nobody of the progress."""
