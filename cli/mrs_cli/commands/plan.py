"""`mrs plan`: show a plan, search for what fits, or load the model and measure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mrs.devices.bandwidth import learn_host_bandwidth
from mrs.errors import ExitCode, UsageError
from mrs.plan.report.conversations import conversations_at_once
from mrs.plan.report.suggestions import nearest_changes
from mrs.process.garbage import garbage_collection_paused
from mrs.request import RunRequest, ServerLoad
from mrs.run.model_loader import ModelLoader
from mrs_cli.commands.loading import with_progress
from mrs_cli.environment import Environment
from mrs_cli.parsing.flags.command_flags import OutputFlags, PlanFlags
from mrs_cli.render.log_lines import log_to_stderr
from mrs_cli.render.plan.plan_lines import render_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mrs.events import OnProgress
    from mrs.plan.plan import Plan
    from mrs.plan.planner import Planner

_Measured = TypeVar("_Measured")


def show_plan(
    environment: Environment, output: OutputFlags, planned: PlanFlags, request: RunRequest
) -> ExitCode:
    """Shows the plan of `request`; without --dry-run, loads the model and shows measurements.

    Nothing is measured on devices and machines that need not be there. The exit code of a plan that
    does not fit is DOES_NOT_FIT.
    """
    if planned.device or planned.machine:
        planned = replace(planned, dry_run=True)
    with log_to_stderr(environment, quiet=output.quiet, verbose=output.verbose):
        if not planned.dry_run:
            return _show_plan(environment, output, planned, request)
        with garbage_collection_paused():  # the headers and plans stay until the end
            return _show_plan(environment, output, planned, request)


def _show_plan(
    environment: Environment, output: OutputFlags, planned: PlanFlags, request: RunRequest
) -> ExitCode:
    request = replace(request, devices=tuple(planned.device or ()))
    _check(planned, request)
    is_settled = request.plan_file is not None
    if not planned.dry_run:
        learn_host_bandwidth()
    loader = ModelLoader(request)
    if not planned.dry_run and request.activations > 8:
        from mrs.run.measure import learn_activation_cost

        learn_activation_cost(loader)
    planner = loader.planner
    if planned.machine:
        return _show_machines(environment, output, planned.machine, planner, request)
    request, made = loader.request, loader.plan
    changes = [] if is_settled else nearest_changes(planner, request, made)
    at_once = conversations_at_once(planner, request, made)
    served = _served(planner, request, made)
    ranks = loader.rank_plans if request.cluster and request.cluster.is_one_stage else ()
    if planned.html is not None:
        from mrs_cli.render.plan.html_page import write_page
        from mrs_cli.render.plan.plan_pages import plan_page

        write_page(Path(planned.html).expanduser(), plan_page(made, changes))
    if not output.json:
        render_plan(environment, made, changes, at_once, served)
        if ranks:
            from mrs_cli.render.plan.rank_lines import rank_lines

            environment.stdout.writelines(f"{line}\n" for line in rank_lines(ranks))
    fits = made.fits
    if ranks:
        from mrs.distributed.shard import ranks_fit

        fits = ranks_fit(ranks)
    result, processes = None, None
    if request.cluster is not None and not planned.dry_run:
        from mrs.run.measure import measure_processes

        processes = _measure(environment, output, loader, measure_processes)
        fits = True  # or that would have been an error
    elif made.fits and not planned.dry_run:
        from mrs.run.measure import measure

        result = _measure(environment, output, loader, measure)
    if output.json:
        from mrs.plan.report.document import dumps, to_document

        document = to_document(made, changes, result, at_once, served)
        if ranks:
            from mrs_cli.render.plan.rank_lines import ranks_document

            document["ranks"] = ranks_document(ranks)
        if processes is not None:
            from mrs_cli.render.plan.processes_table import processes_document

            document["processes"] = processes_document(processes)
        environment.stdout.write(dumps(document) + "\n")
    elif result is not None:
        from mrs_cli.render.plan.measured_table import measured_table

        environment.stdout.write("\n".join(["", *measured_table(loader.plan, result)]) + "\n")
    elif processes is not None:
        from mrs_cli.render.plan.processes_table import processes_table

        environment.stdout.write("\n".join(["", *processes_table(processes)]) + "\n")
    return ExitCode.DONE if fits else ExitCode.DOES_NOT_FIT


def _served(planner: Planner, request: RunRequest, made: Plan) -> Plan | None:
    """The plan of a server of this model; None if that is not known."""
    if not made.fits or request.cluster is not None or request.plan_file is not None:
        return None
    from mrs.server.models.room import for_many_sequences

    served = for_many_sequences(replace(request, server=ServerLoad()), planner.plan)
    return planner.plan(served)


def _show_machines(
    environment: Environment,
    output: OutputFlags,
    texts: Sequence[str],
    planner: Planner,
    request: RunRequest,
) -> ExitCode:
    import json

    from mrs.devices.machine import parse_machines
    from mrs.plan.machines import plan_machines
    from mrs_cli.render.plan.machines_table import machines_document, machines_lines

    made = plan_machines(planner, request, parse_machines(texts))
    document = json.dumps(machines_document(made), indent=2, ensure_ascii=False)
    text = document if output.json else "\n".join(machines_lines(made))
    environment.stdout.write(text + "\n")
    return ExitCode.DONE if made.stages else ExitCode.DOES_NOT_FIT


def _check(planned: PlanFlags, request: RunRequest) -> None:
    split = request.cluster is not None and not request.cluster.is_one_stage
    if planned.dry_run and split:
        raise UsageError(
            "what workers have is not known before they join",
            where="--workers or --wait-for with --dry-run",
            hint="leave out --dry-run, or describe the machines with --machine",
        )
    if planned.machine and planned.html is not None:
        raise UsageError("--html and --machine are both given", hint="give one of the two")
    if planned.machine and request.devices:
        raise UsageError("--machine excludes --device", hint="give the devices to the machines")


def _measure(
    environment: Environment,
    output: OutputFlags,
    loader: ModelLoader,
    measure: Callable[[ModelLoader, OnProgress | None], _Measured],
) -> _Measured:
    title = f"measuring {loader.plan.model.model_id}"
    return with_progress(
        environment, title, lambda on_progress: measure(loader, on_progress), quiet=output.quiet
    )
