"""`mrs quantize`: write a model's weights, quantized, to a GGUF file or to UQFF files."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mrs.errors import ExitCode, UsageError
from mrs.events import OnProgress
from mrs.request import RunRequest
from mrs.source.address import model_name
from mrs.source.reader import expanded
from mrs.units import human_bytes, parse_bytes
from mrs_cli.commands.loading import with_progress
from mrs_cli.environment import Environment
from mrs_cli.parsing.flags.command_flags import OutputFlags, QuantizeFlags

if TYPE_CHECKING:
    from mrs.run.measured_formats import Budget, Chosen
    from mrs.run.model_loader import ModelLoader


def run_quantize(
    environment: Environment, output: OutputFlags, flags: QuantizeFlags, request: RunRequest
) -> ExitCode:
    """Writes the model once for each of the types that --isq names, separated by commas."""
    from mrs.run.write_gguf import quantize_gguf
    from mrs.run.write_uqff import check_isq, quantize

    target = flags.output or request.write_uqff
    if target is None:
        raise UsageError("no output is given", hint="add -o FILE.gguf or -o FOLDER")
    formats = [name.strip() for name in request.isq.split(",")] if request.isq else []
    gguf = expanded(target) if flags.writes_gguf else None
    budget, shard_bytes = _budget(flags), _bytes(flags.max_shard_size, "--max-shard-size")
    if gguf is None and shard_bytes is not None:
        raise UsageError("--max-shard-size is for GGUF files", hint="give -o FILE.gguf")
    if budget is not None:
        from mrs.run.measured_formats import check_budget

        check_budget(request)
        if gguf is None:
            raise UsageError("a budget is for GGUF files", hint="give -o FILE.gguf")
    for name in formats if gguf is None else ():
        check_isq(name)
    if len(formats) > 1 and Path(target).suffix in (".uqff", ".gguf"):
        raise UsageError("-o is one file for several types", hint="give -o a folder")
    chosen: list[Chosen] = []
    for isq in formats or (None,):
        asked = replace(request, isq=isq, write_uqff=None if gguf else target)

        def work(on_progress: OnProgress | None, asked: RunRequest = asked) -> tuple[Path, ...]:
            if gguf is not None:
                loader = _loader(asked if budget is None else replace(asked, isq="q4k"))
                return quantize_gguf(
                    asked, gguf, on_progress, loader, budget, chosen.append, shard_bytes
                )
            return quantize(asked, on_progress, _loader(asked))

        title = f"quantizing {model_name(request.source.model_id)}"
        paths = with_progress(environment, title, work, quiet=output.quiet)
        _print(environment, output, paths, chosen[-1] if chosen else None)
    return ExitCode.DONE


def _budget(flags: QuantizeFlags) -> Budget | None:
    """What the formats may take together, if they are to be chosen. Raises UsageError."""
    from mrs.run.measured_formats import Budget

    given = [flags.bits is not None, flags.size is not None, flags.fit is not None]
    if sum(given) > 1:
        raise UsageError("--bits, --size and --fit exclude each other", hint="give one of them")
    if not any(given):
        return None
    return Budget(flags.bits, _bytes(flags.size, "--size"), flags.fit)


def _bytes(text: str | None, flag: str) -> int | None:
    """The bytes of a size. Raises UsageError."""
    try:
        return None if text is None else parse_bytes(text)
    except ValueError as error:
        raise UsageError(str(error), where=flag) from error


def _loader(request: RunRequest) -> ModelLoader | None:
    """What measures or reads the importance of columns, if the request asks for it."""
    if request.importance_file is None:
        return None
    from mrs.run.model_loader import ModelLoader

    return ModelLoader(request)


def _print(
    environment: Environment, output: OutputFlags, paths: tuple[Path, ...], chosen: Chosen | None
) -> None:
    size_bytes = sum(path.stat().st_size for path in paths)
    if output.json:
        facts = {"files": list(map(str, paths)), "size_bytes": size_bytes}
        line = json.dumps(facts | ({} if chosen is None else chosen.to_json()))
    else:
        if chosen is not None:
            environment.stdout.write(chosen.summary + "\n")
        size = human_bytes(size_bytes)
        line = f"{size} in {len(paths)} file{'s' if len(paths) > 1 else ''}; run them: "
        line += shlex.join(_run(paths[0]))
    environment.stdout.write(line + "\n")


def _run(file: Path) -> list[str]:
    """The command that runs the model of a file."""
    if file.suffix == ".gguf":
        return ["mrs", "run", str(file)]
    return ["mrs", "-i", "-m", str(file.parent), "-f", file.name]
