"""The share of a worker: computes the steps that the head describes, together with all others."""

from __future__ import annotations

import numpy as np
import torch

from mrs.distributed.channel import Damaged
from mrs.distributed.messages import Step
from mrs.distributed.shared_decoder import SharedDecoder
from mrs.distributed.stage import Stage


class SharedStage:
    """All layers of a worker's `decoder`, with the caches of `stage`."""

    def __init__(self, decoder: SharedDecoder, stage: Stage) -> None:
        self.decoder = decoder
        self.stage = stage

    @torch.inference_mode()
    def compute(self, step: Step) -> None:
        """Compute a step, after its commands. Raises EOFError and OSError if a process ends."""
        for command in step.commands:
            self.stage.run(command)
        ids = np.frombuffer(step.tokens, np.int64)
        total = sum(each.count for each in step.sequences)
        if len(ids) != total or not total or not 0 <= ids.min() <= ids.max() < self._vocabulary:
            raise Damaged(f"{len(ids)} tokens of {total}, or ids outside of the vocabulary")
        if not all(0 <= row < total for row in step.wanted):
            raise Damaged(f"rows {step.wanted} of {total}")
        x = self.decoder.look_up(torch.from_numpy(ids.copy()))
        out = self.stage.compute(step, x)
        if step.wanted:
            self.decoder.finish(out if len(step.wanted) == total else out[step.wanted])

    @property
    def _vocabulary(self) -> int:
        return self.decoder.spec.vocab_size
