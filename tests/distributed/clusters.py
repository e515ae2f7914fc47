"""Clusters of the test's process and of workers that a fork server starts."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import SystemRandom
from typing import Any

import torch

from mrs.distributed.cluster import Cluster
from mrs.engine.engine import Engine
from mrs.model.decoder import Decoder
from mrs.request import ClusterRequest, ModelSource, RunRequest
from mrs.run.model_loader import ModelLoader
from support.engines import make_engine

SECRET = b"a secret of tests"
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["clusters", "mrs.distributed.worker", "mrs.distributed.stage"])


def free_port() -> int:
    """A port that no other program is given by chance while nobody listens to it.

    Systems give those above 32767 to whoever asks for any.
    """
    while True:
        port = SystemRandom().randrange(10_000, 32_768)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _work(port: int, log: str, settings: dict[str, Any]) -> None:
    import sys

    from mrs import families
    from mrs.distributed import process_group
    from mrs.distributed.protocol.secret import own_secret
    from mrs.distributed.worker import WorkerSettings, run_worker
    from mrs.errors import MrsError

    families.__path__.extend(settings.pop("families", []))
    if settings.pop("collectives", False):
        process_group.uses_collectives = lambda device: True
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Path(log).open("a") as file:
        os.dup2(file.fileno(), 2)
        chosen = WorkerSettings(
            ("127.0.0.1", port), **{"secret": own_secret(), "access": None, **settings}
        )
        try:
            run_worker(chosen, lambda text: print(text, file=file, flush=True), planner_of)
        except MrsError as error:
            print(f"error: {error}", file=file, flush=True)
            sys.stderr.flush()
            os._exit(error.exit_code)


def planner_of(request: RunRequest) -> Any:
    return ModelLoader(request).planner


class Workers:
    """Worker processes that dial one port; `logs` are what each has said.

    `families` among the settings are folders with families that are not in the package.
    """

    def __init__(self, folder: Path, count: int, port: int | None = None, **settings: Any) -> None:
        self.port = port or free_port()
        self.logs = [folder / f"worker{n}-{time.monotonic_ns()}.log" for n in range(count)]
        self.processes: list[BaseProcess] = []
        for log in self.logs:
            process = _context.Process(
                target=_work, args=(self.port, str(log), settings), daemon=True
            )
            process.start()
            self.processes.append(process)

    def said(self, number: int) -> str:
        return self.logs[number].read_text() if self.logs[number].exists() else ""

    def end(self) -> None:
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()


def request_for(folder: Path, port: int | None, count: int, **changes: Any) -> RunRequest:
    """The request of a model in safetensors, or in a GGUF file."""
    is_gguf = folder.suffix == ".gguf"
    source = ModelSource(str(folder), "gguf" if is_gguf else "safetensors")
    cluster = None
    if port is not None:
        cluster = ClusterRequest(wait_for=count, listen=f"127.0.0.1:{port}", wait_limit_s=120)
    return RunRequest(source, cpu=True, max_seq_len=200, cluster=cluster, **changes)


@contextmanager
def cluster_decoder(request: RunRequest) -> Iterator[tuple[Decoder, Cluster]]:
    """The decoder of a coordinator, whose workers end their session afterwards."""
    loader = ModelLoader(request)
    cluster = Cluster.gather(request, loader.planner, loader.plan, loader.rank_plans)
    try:
        yield cluster.decoder(), cluster
    finally:
        cluster.close()


def single_decoder(request: RunRequest) -> Decoder:
    decoder, _ = ModelLoader(request).load_decoder(lambda progress: None)
    return decoder


def engine_of(decoder: Decoder, **settings: Any) -> Engine:
    given = {"context_tokens": 400, "planned_tokens": 200, "chunk_tokens": 16, "max_seqs": 8}
    return make_engine(decoder, **{**given, "prefix_cache_n": 8, **settings})
