"""`mrs batch`: answer a file of requests on this machine, and go on where it was stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from mrs.errors import ExitCode, NotReadable, UsageError
from mrs.request import RunRequest
from mrs_cli.commands.serve import load_function
from mrs_cli.environment import Environment
from mrs_cli.exit import interruptible
from mrs_cli.parsing.flags.batch_flags import BatchFlags
from mrs_cli.parsing.flags.command_flags import OutputFlags
from mrs_cli.render.error_lines import say
from mrs_cli.render.log_lines import log_to_stderr
from mrs_cli.render.safe_text import json_text

if TYPE_CHECKING:
    from mrs.server.batches.results import Results
    from mrs.server.offline import BatchForecast, BatchReport

#: Where no bar can move, a line says so often how far the batch is.
_LINE_S = 60.0


def run_batch(
    environment: Environment,
    output: OutputFlags,
    flags: BatchFlags,
    request: RunRequest,
    words: Sequence[str],
) -> ExitCode:
    """Answers the lines that have no answer yet. Raises MrsError."""
    path = _file(words)
    from mrs.server.batches.results import results_in
    from mrs.server.offline import OfflineBatch

    answers = Path(flags.output).expanduser() if flags.output else _beside(path, "output")
    errors = Path(flags.error_file).expanduser() if flags.error_file else _beside(path, "errors")
    if path in (answers, errors):
        raise UsageError(f"{path} cannot be the requests and the answers", hint="name another file")

    def tell(text: str) -> None:
        if not output.quiet:
            say(environment, text)

    try:
        with (
            log_to_stderr(environment, quiet=output.quiet, verbose=output.verbose),
            results_in(answers, errors) as results,
        ):
            try:
                with interruptible(environment):
                    batch = OfflineBatch(path, results)
            except OSError as error:
                where = error.strerror or ""
                raise NotReadable(f"cannot read {path}", where=where) from error
            if results.done:
                tell(f"{len(results.done)} of {batch.summary.count} lines have their answers")
            if not batch.left:
                tell(f"nothing is left to do: the answers are in {answers}")
                return ExitCode.DONE
            with _progress(environment, batch.summary.count, tell, quiet=output.quiet) as show:
                report = batch.run(
                    request,
                    load_function(environment, output),
                    lambda forecast: tell(_forecast(forecast)),
                    show,
                )
    except KeyboardInterrupt:
        tell("the same command goes on from here")
        raise
    if output.json:
        files = {"output": str(answers), "errors": str(errors) if report.failed else None}
        environment.stdout.write(json_text({**_figures(report), **files}) + "\n")
    for line in _summary(report, answers, errors):
        tell(line)
    return ExitCode.DONE


def _file(words: Sequence[str]) -> Path:
    if not words:
        raise UsageError("no file of requests is given", hint="mrs batch -m ID FILE.jsonl")
    if len(words) > 1:
        raise UsageError(f"unexpected argument {words[1]!r}", hint="give one file")
    path = Path(words[0]).expanduser()
    if not path.is_file():
        raise NotReadable(f"there is no file {path}", hint="give a file of JSON lines")
    return path


def _beside(path: Path, kind: str) -> Path:
    return path.with_name(f"{path.stem}.{kind}.jsonl")


@contextmanager
def _progress(
    environment: Environment, total: int, tell: Callable[[str], None], *, quiet: bool
) -> Iterator[Callable[[Results], None]]:
    """What shows how far the batch is: a bar, which begins with the first answer, or lines."""
    if not quiet and environment.can_animate(environment.stderr):
        from mrs_cli.render.progress_bars import late_step_bar

        with late_step_bar(environment, "answering") as move:
            yield lambda results: move(_title(results), results.completed + results.failed, total)
        return
    told_s = time.monotonic()

    def show(results: Results) -> None:
        nonlocal told_s
        if time.monotonic() - told_s >= _LINE_S:
            told_s = time.monotonic()
            tell(f"{results.completed + results.failed} of {total} lines, {results.failed} failed")

    yield show


def _title(results: Results) -> str:
    return f"answering, {results.failed} failed" if results.failed else "answering"


def _forecast(forecast: BatchForecast) -> str:
    cost = forecast.cost
    text = f"{_lines(forecast.lines)}: about {round(cost.prompt_tokens):,} tokens of prompts"
    if cost.replies:
        text += f", at most {round(cost.most_reply_tokens):,} of replies"
    return f"{text}; by the plan at most {_duration(forecast.seconds)}"


def _duration(seconds: float) -> str:
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{max(seconds, 1):.0f} s"


def _figures(report: BatchReport) -> dict[str, object]:
    return asdict(report) | {
        "usage": {
            "prompt_tokens": report.usage.prompt_tokens,
            "completion_tokens": report.usage.completion_tokens,
        }
    }


def _summary(report: BatchReport, answers: Path, errors: Path) -> Iterator[str]:
    seconds, usage = max(report.seconds, 1e-9), report.usage
    done = report.completed + report.failed - report.before
    tokens = f"{usage.prompt_tokens:,} tokens of prompts"
    if usage.completion_tokens:
        tokens += f" and {usage.completion_tokens:,} of replies"
    rate = (usage.completion_tokens or usage.prompt_tokens) / seconds
    took = f"{tokens} in {_duration(seconds)} ({rate:.1f} tokens/s)"
    yield f"{_lines(done)} answered in {answers}: {took}"
    if report.failed:
        yield f"{_lines(report.failed)} failed: {errors} says why"
    if report.ignored:
        yield f"fields without effect: {', '.join(report.ignored)}"


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count:,} lines"
