"""`mrs eval`: the perplexity of a model in several settings, and their divergence."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mrs.errors import ExitCode, UsageError
from mrs.request import CACHE_TYPES, CacheType, RunRequest
from mrs.source.address import model_name
from mrs.units import human_bytes
from mrs_cli.commands.loading import with_progress
from mrs_cli.environment import Environment
from mrs_cli.exit import interruptible
from mrs_cli.parsing.flags.command_flags import EvalFlags, OutputFlags
from mrs_cli.render.error_lines import say
from mrs_cli.render.log_lines import log_to_stderr

if TYPE_CHECKING:
    from mrs.run.evaluation.evaluate import Evaluation, Report

NOTHING = "none"


def run_eval(
    environment: Environment,
    output: OutputFlags,
    flags: EvalFlags,
    request: RunRequest,
    find: Callable[[str], RunRequest],
) -> ExitCode:
    """Prints a table, or one JSON object; `find` makes the request of another model."""
    from mrs.run.evaluation.evaluate import Evaluation, exact_request, settings_of
    from mrs.run.evaluation.windows import Work

    work = Work(flags.text, flags.tokens, flags.context_length, flags.stride, flags.windows)
    settings = settings_of(request, _cache_types(flags.cache_types))
    name = (flags.reference or "exact").strip()
    if name.lower() == NOTHING:
        if flags.plot is not None:
            raise UsageError("--plot draws the divergence from a reference", hint="give one")
        reference = None
    elif name.lower() == "exact":
        reference = exact_request(request)
    else:
        reference = replace(find(name), isq=None, imatrix=None, calibration_file=None)
    with log_to_stderr(environment, quiet=output.quiet, verbose=output.verbose):
        evaluation = Evaluation(request, reference, settings, work)
        title = f"evaluating {model_name(request.source.model_id)}"
        with_progress(environment, title, evaluation.fetch, quiet=output.quiet)
        if not output.quiet:
            say(environment, _cost(evaluation))
        report = _run(environment, evaluation, title, quiet=output.quiet)
    if flags.plot is not None:
        from mrs_cli.render.plan.loss_plot import write_plot

        write_plot(Path(flags.plot).expanduser(), report)
    if output.json:
        environment.stdout.write(json.dumps(report.to_json(), ensure_ascii=False) + "\n")
    else:
        from mrs_cli.render.eval_table import eval_lines

        environment.stdout.writelines(f"{line}\n" for line in eval_lines(environment, report))
    return ExitCode.DONE


def _run(environment: Environment, evaluation: Evaluation, title: str, *, quiet: bool) -> Report:
    try:
        with interruptible(environment):
            if quiet or not environment.can_animate(environment.stderr):
                return evaluation.run()
            from mrs_cli.render.progress_bars import step_bar

            with step_bar(environment, title) as show:
                return evaluation.run(
                    lambda step: show(f"{title}: {step.model}", step.done, step.total)
                )
    except KeyboardInterrupt:
        if not quiet:
            say(environment, "the same command goes on from here")
        raise


def _cache_types(text: str | None) -> Sequence[CacheType]:
    wanted = [] if text is None else [each.strip().lower() for each in text.split(",")]
    for each in wanted:
        if each not in CACHE_TYPES:
            raise UsageError(
                f"{each!r} is not a type of keys and values",
                where="--cache-types",
                hint=f"give some of {','.join(CACHE_TYPES)}",
            )
    return [known for each in wanted for known in CACHE_TYPES if known == each]


def _cost(evaluation: Evaluation) -> str:
    """What the evaluation needs, before it begins."""
    count, work = len(evaluation.windows), evaluation.work
    models = len(evaluation.models)
    return (
        f"{count} windows of {work.context_tokens} tokens of {work.title}, {work.scored} scored in "
        f"each; {models} model{'s' if models > 1 else ''}, one after the other: up to "
        f"{human_bytes(evaluation.needed_bytes)} of memory, {human_bytes(evaluation.disk_bytes)} "
        f"of disk and about {_duration(evaluation.planned_s)}"
    )


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return "a second" if seconds < 1.5 else f"{seconds:.0f} seconds"
