"""Quantizes into copies of a folder, in processes that are killed one after another.

Arguments: the model, the folder, where the copies go (`0`, `1` and so on). Process N is killed
before the Nth change of its copy; the last one is not killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import torch

from mrs.load import uqff_writer
from mrs.request import ModelSource, RunRequest
from mrs.run.write_uqff import quantize

CHANGES = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree")


def is_killed_at(point: int, model: str, folder: Path) -> bool:
    child = os.fork()
    if not child:
        write(point, model, folder)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def write(point: int, model: str, folder: Path) -> None:
    reached = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal reached
        if event not in CHANGES or str(folder) not in str(arguments[0]):
            return
        if event == "open" and not int(str(arguments[2])) & os.O_CREAT:
            return
        if reached == point:
            os.kill(os.getpid(), signal.SIGKILL)
        reached += 1

    sys.addaudithook(hook)
    source = ModelSource(model, "safetensors")
    quantize(RunRequest(source, isq="q8_0", write_uqff=str(folder)))


def main() -> None:
    model, older, copies = sys.argv[1:]
    torch.set_num_threads(1)
    uqff_writer.SHARD_BYTES = 150_000
    point = 0
    while True:
        folder = Path(copies) / str(point)
        shutil.copytree(older, folder)
        if not is_killed_at(point, model, folder):
            return
        point += 1


if __name__ == "__main__":
    main()
