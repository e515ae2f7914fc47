"""From a request to a loaded model; what can fail early, and without torch, comes first."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mrs.devices.cpu_path import cpu_path
from mrs.kernels.cpu import library_file
from mrs.plan.placement.kv_pool import pool_warnings
from mrs.plan.warnings import length_warnings
from mrs.process.garbage import garbage_collection_paused
from mrs.process.promises import Promise
from mrs.run.planned_model import PlannedModel, no_report

if TYPE_CHECKING:
    from mrs.events import OnProgress
    from mrs.request import RunRequest
    from mrs.run.loaded_model import LoadedModel
    from mrs.run.request_memory import RequestMemory

_logger = logging.getLogger(__name__)


class ModelLoader(PlannedModel):
    """Loads a planned model, whose texts and images share `memory` with those of others."""

    def __init__(self, request: RunRequest, memory: RequestMemory | None = None) -> None:
        super().__init__(request)
        self._memory = memory

    def load(self, on_progress: OnProgress | None = None) -> LoadedModel:
        """The loaded model; missing files are downloaded. Raises MrsError."""
        from mrs.process.address_space import require_address_space_for_torch
        from mrs.process.interrupts import interrupts_held
        from mrs.run.write_uqff import write_if_asked
        from mrs.text.template_process import renderer

        report = on_progress or no_report
        if self.request.cluster is None:
            self.plan.require_fit()
        self._warn()
        self.fetch(report)
        write_if_asked(self, report)
        require_address_space_for_torch()
        renderer.start()  # a process that starts while the imports below run
        # The heavy imports come last, so that every error above is raised quickly.
        # All imports at once, so that Ctrl-C cannot break one; they make no garbage.
        with interrupts_held(), garbage_collection_paused():
            from mrs.run.load import load

            if self.request.vision is not None:
                import mrs.media.media_loader
                import mrs.model.vision.vision_module  # noqa: F401
        promise = None if self.request.cluster else Promise(self.plan.host_bytes)
        try:
            loaded = load(self, self._memory, report)
        except BaseException:
            if promise is not None:
                promise.withdraw()
            raise
        loaded.promise = promise
        return loaded

    def _warn(self) -> None:
        size = pool_warnings(self.request.paged, self.plan.workload, self.plan.devices[0].kind)
        length = length_warnings(self.request, self.planner.description.spec)
        lines = *self.planner.warnings, *length, *size, *self._library_warning()
        idle = "" if self.plan.activation_cost else self.plan.activation_note
        for line in (*lines, self.plan.disk_note, idle and f"--activations: {idle}"):
            if line:
                _logger.warning("%s", line)

    def _library_warning(self) -> tuple[str, ...]:
        """What is said where torch computes on a CPU without having been asked to."""
        on_cpu = any(self.plan.devices[index].kind == "cpu" for index in self.plan.layer_devices)
        if not on_cpu or library_file.PATH.exists() or cpu_path() == "torch":
            return ()
        return ("the native CPU kernels are not built: mrs is slower; mrs doctor says what to do",)
