"""`mrs pull`: download a model without running it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrs.errors import ExitCode
from mrs.events import DISK, LoadProgress, OnProgress
from mrs.request import RunRequest
from mrs.source.address import model_name
from mrs.units import human_bytes
from mrs_cli.commands.loading import with_progress
from mrs_cli.environment import Environment
from mrs_cli.parsing.flags.command_flags import OutputFlags
from mrs_cli.render.safe_text import json_text, printable

if TYPE_CHECKING:
    from mrs.source.checkpoint import Checkpoint


def pull(environment: Environment, output: OutputFlags, request: RunRequest) -> ExitCode:
    """Downloads what is missing of the model of `request`, and says where it is."""
    from mrs.source.find import fetch, open_checkpoint

    name = model_name(request.source.model_id)
    checkpoint = open_checkpoint(request.source)
    was_local = checkpoint.is_local

    def download(on_progress: OnProgress | None) -> Checkpoint:
        report = on_progress or (lambda _: None)
        return fetch(checkpoint, lambda done, total: report(LoadProgress(DISK, done, total)))

    fetched = with_progress(environment, f"downloading {name}", download, quiet=output.quiet)
    size_bytes = sum(file.size_bytes for file in fetched.files)
    folder = str(fetched.folder.path)
    if output.json:
        text = json_text({"model_id": name, "path": folder, "size_bytes": size_bytes})
    else:
        done = "is on this machine" if was_local else "downloaded"
        text = printable(f"{name} {done}: {human_bytes(size_bytes)} in {folder}")
    environment.stdout.write(text + "\n")
    return ExitCode.DONE
