"""Sums over processes with a card each: NCCL between cards; gloo does the same between CPUs.

The process groups are torch's. A peer that is lost is noticed by the connections that the processes
have anyway: when one of them ends, waiting operations are aborted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mrs.distributed.protocol.channel import Channel
from mrs.distributed.protocol.failures import STEP_LIMIT_S, start_thread

_MEETING_LIMIT = timedelta(seconds=30)
#: That a peer is lost is known from its connection.
_STEP_LIMIT = timedelta(seconds=STEP_LIMIT_S)
#: gloo, which cannot be aborted, lets a process end only after this time.
_GLOO_LIMIT = timedelta(seconds=5)
_POLL_S = 20e-6


class CollectiveGroup:
    """Process `rank` among those that share layers; `peers` are the channels to all others.

    All processes call the same methods in the same order. These raise EOFError and OSError once a
    peer has ended, or after `close`.
    """

    def __init__(
        self, rank: int, peers: Mapping[int, Channel], path: str, device: torch.device
    ) -> None:
        """All processes call this at the same time, with the path of an empty file. Raises OSError.

        NCCL is used for a card, gloo for the CPU.
        """
        self._rank, self._ranks = rank, len(peers) + 1
        self._peers, self.device = peers, device
        self._has_ended = threading.Event()
        self._collectives = _connected(path, rank, self._ranks, device)
        self.sum(torch.zeros(1, device=device))  # with it NCCL connects
        if device.type == "cuda":
            self._collectives.set_timeout(_STEP_LIMIT)

    def watch(self) -> None:
        """From now on the peers send nothing more, and whoever ends wakes up all others."""
        for channel in self._peers.values():
            start_thread("watch", partial(self._await_end, channel), lambda error: self._abort())

    def sum(self, part: Tensor) -> Tensor:
        """The sum of the parts of all ranks, of one shape and type, added in the order of ranks.

        It is added up as float32, so that all ranks have the same bits.
        """
        parts = self._of_all(part)
        total = parts[0].float() + parts[1]
        for further in parts[2:]:
            total += further
        return total.to(part.dtype)

    def gather(self, part: Tensor, widths: Sequence[int]) -> Tensor:
        """The parts (N, width) of all ranks as one (N, sum of `widths`), for rank 0 alone.

        Other ranks get their own part.
        """
        tokens, most = part.shape[0], max(widths)
        if not tokens:
            return part if self._rank else part.new_empty(0, sum(widths))
        parts = self._of_all(torch.nn.functional.pad(part, (0, most - part.shape[1])))
        if self._rank:
            return part
        return torch.cat([each[:, :n] for each, n in zip(parts, widths, strict=True)], dim=1)

    def spread(self, x: Tensor) -> Tensor:
        """The `x` of rank 0, as float32, for all; other ranks give any of the same shape."""
        out = x.to(self.device, torch.float32).contiguous()
        if out.numel():
            self._wait("broadcast", out, 0)
        return out

    def close(self) -> None:
        """Wake up whoever waits."""
        for channel in self._peers.values():
            channel.close()
        self._abort()

    def _of_all(self, part: Tensor) -> list[Tensor]:
        """The parts of all ranks, of one shape and type."""
        own = part.contiguous()
        parts = [torch.empty_like(own) for _ in range(self._ranks)]
        self._wait("allgather", [parts], [own])
        return parts

    def _wait(self, name: str, *given: Any) -> None:
        """Start an operation and wait for it; on a card only what the card does next waits."""
        try:
            work = getattr(self._collectives, name)(*given)
            while self.device.type == "cpu" and not work.is_completed():
                if self._has_ended.is_set():  # gloo goes on to wait after an abort
                    raise ConnectionError(f"a process has ended during an operation of all: {name}")
                time.sleep(_POLL_S)
            work.wait()
        except RuntimeError as error:  # of torch, of whatever kind
            text = f"an operation of several processes has failed: {name}"
            raise ConnectionError(text) from error

    def _await_end(self, channel: Channel) -> None:
        channel.await_signal()
        self._abort()

    def _abort(self) -> None:
        self._has_ended.set()
        with suppress(RuntimeError):
            self._collectives.abort()


def _connected(path: str, rank: int, ranks: int, device: torch.device) -> Any:
    """torch's group of these processes. Raises OSError."""
    import torch.distributed as dist

    try:
        store = dist.FileStore(path, ranks)  # type: ignore[attr-defined]
        if device.type == "cuda":
            torch.cuda.set_device(device)
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = _MEETING_LIMIT
            return dist.ProcessGroupNCCL(store, rank, ranks, options)
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = _GLOO_LIMIT
        # gloo would listen where the machine's name leads
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        return dist.ProcessGroupGloo(store, rank, ranks, options)
    except RuntimeError as error:
        raise ConnectionError("the processes of a group cannot connect") from error
