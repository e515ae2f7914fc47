"""`mrs bench`: measure how fast a model is on this machine."""

from __future__ import annotations

import json

from mrs.errors import ExitCode
from mrs.request import RunRequest
from mrs.source.address import model_name
from mrs_cli.commands.loading import with_progress
from mrs_cli.environment import Environment
from mrs_cli.parsing.flags.command_flags import BenchFlags, OutputFlags


def run_bench(
    environment: Environment, output: OutputFlags, flags: BenchFlags, request: RunRequest
) -> ExitCode:
    """Measures the model of `request` and prints a table, or one JSON object."""
    from mrs.run.bench import BenchSettings, bench

    work = BenchSettings(**vars(flags))
    report = with_progress(
        environment,
        f"measuring {model_name(request.source.model_id)}",
        lambda show: bench(request, work, show),
        quiet=output.quiet,
    )
    if output.json:
        environment.stdout.write(json.dumps(report.to_json()) + "\n")
    else:
        from mrs_cli.render.bench_table import bench_lines

        environment.stdout.write("\n".join(bench_lines(report)) + "\n")
    return ExitCode.DONE
