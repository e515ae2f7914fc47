"""The decoder of a head that has some of the layers, and workers that may be replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from mrs.architecture.model_spec import ModelSpec
from mrs.cache.sequence_cache import SequenceCache
from mrs.distributed.further_layers import Connections, RemoteLayers
from mrs.errors import MrsError
from mrs.model.batch import ForwardBatch
from mrs.model.caches_lost import CachesLost
from mrs.model.decoder import Decoder
from mrs.model.model_weights import ModelWeights


class Renewing(Protocol):
    """What gathers workers again after one is lost."""

    def renewed(self) -> Connections | None:
        """The connections that were made since the last call, if there are any.

        Raises CachesLost while they are being made, and MrsError if that was in vain.
        """

    def reason(self, error: Exception) -> Exception:
        """What a step raises that failed with `error`."""


class HeadDecoder(Decoder):
    """The layers of this process, and those of all workers."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: ModelWeights,
        layer_devices: Sequence[torch.device],
        dtypes: tuple[torch.dtype, torch.dtype],
        workers: RemoteLayers,
        gathering: Renewing,
    ) -> None:
        """`dtypes` are those of the weights, and of keys and values."""
        super().__init__(spec, weights, layer_devices, *dtypes, workers)
        self._gathering = gathering
        self._workers = workers

    def forward(
        self,
        batch: ForwardBatch,
        caches: Sequence[SequenceCache],
        check: Callable[[], None] = lambda: None,
        observe: Callable[[Tensor], None] | None = None,
        score: Callable[[slice, Tensor], None] | None = None,
    ) -> Tensor:
        """As in `Decoder`. Raises CachesLost, too."""
        fresh = self._gathering.renewed()
        if fresh is not None:
            assert fresh.stages is not None
            self._workers.take_over(fresh.stages)
            raise CachesLost
        try:
            return super().forward(batch, caches, check, observe, score)
        except (OSError, EOFError, MrsError) as error:
            raise self._gathering.reason(error) from error
