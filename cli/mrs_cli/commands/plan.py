"""`mrs plan`: show where every byte goes, search for what fits, or load and measure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mrs.errors import ExitCode, UsageError
from mrs.request import RunRequest
from mrs_cli.environment import Environment
from mrs_cli.parsing import model_requests as ask
from mrs_cli.parsing.flags import (
    GgufFlags,
    GlobalFlags,
    OutputFlags,
    PlainFlags,
    PlanFlags,
    PlanningFlags,
    VisionFlags,
)
from mrs_cli.render.log_lines import listening

if TYPE_CHECKING:
    from mrs.plan.plan import Plan
    from mrs.plan.planner import Planner
    from mrs.plan.reconcile import Reconciliation

DEMO = "demo"


def find_request(flags: GlobalFlags, planned: PlanFlags, planning: PlanningFlags) -> RunRequest:
    """What `mrs plan -m ID [-f FILE]` asks for; the selector is found from the model's files."""
    from mrs.source.find import find_selector

    model_id, filename = planned.model_id or DEMO, planned.filename
    if filename is not None and planned.model_id is None:
        raise UsageError(f"-f {filename} names a file of no model", hint="add -m ID")
    plain = ask.plain_request(flags, PlainFlags(model_id), planning)
    names = tuple((filename or "").split())
    selector = find_selector(replace(plain.source, filenames=names))
    if selector == "plain":
        return plain
    if selector == "vision-plain":
        return ask.vision_request(flags, VisionFlags(model_id), planning)
    source = replace(plain.source, container="gguf", filenames=names)
    if filename is None:
        return replace(plain, source=source)
    return ask.gguf_request(flags, GgufFlags(model_id, [filename]), planning)


def refuse_shorthand(planned: PlanFlags, selector: str) -> None:
    """-m and -f belong to the selector where one is named."""
    for flag, value in (("-m", planned.model_id), ("-f", planned.filename)):
        if value is not None:
            raise UsageError(
                f"{flag} {value} stands before {selector}", hint=f"put it after {selector}"
            )


def show_plan(
    environment: Environment, output: OutputFlags, planned: PlanFlags, request: RunRequest
) -> ExitCode:
    """Shows the plan of `request`; without --dry-run loads it and shows what was measured.

    The exit code is DOES_NOT_FIT for a plan that lacks memory.
    """
    with listening(environment, quiet=output.quiet, verbose=output.verbose):
        return _show_plan(environment, output, planned, request)


def _show_plan(
    environment: Environment, output: OutputFlags, planned: PlanFlags, request: RunRequest
) -> ExitCode:
    from mrs.plan.advice import nearest_changes
    from mrs.plan.bandwidth import learn_host_bandwidth
    from mrs.plan.conversations import conversations_at_once
    from mrs.plan.document import dumps, to_document
    from mrs.plan.solve import solve
    from mrs.runner import open_planner, plan
    from mrs_cli.render.plan_lines import render_plan, render_reconciliation

    request = replace(request, devices=tuple(planned.device or ()))
    if request.devices and not planned.dry_run:
        raise UsageError("--device needs --dry-run: a device may not be there to load on")
    is_settled = request.plan_file is not None
    if is_settled and planned.solve:
        raise UsageError("--solve looks for what --plan has settled", hint="give one of them")
    if not planned.dry_run:
        learn_host_bandwidth()
    planner = open_planner(request)
    solution = solve(planner, request, planned.solve) if planned.solve else None
    made = plan(request, planner) if solution is None else solution.plan
    request = request if solution is None else solution.request
    solved = solution is not None and solution.best is not None
    changes = [] if solved or is_settled else nearest_changes(planner, request, made)
    at_once = conversations_at_once(planner, request, made)
    if not output.json:
        render_plan(environment, made, changes, solution, at_once)
    result = None
    if made.fits and not planned.dry_run:
        result = _measure(environment, output, request, planner, made)
    if output.json:
        document = to_document(made, changes, solution, result, at_once)
        environment.stdout.write(dumps(document) + "\n")
    elif result is not None:
        render_reconciliation(environment, made, result)
    return ExitCode.DONE if made.fits else ExitCode.DOES_NOT_FIT


def _measure(
    environment: Environment,
    output: OutputFlags,
    request: RunRequest,
    planner: Planner,
    plan: Plan,
) -> Reconciliation:
    from mrs.runner import rehearse
    from mrs_cli.render.progress_bars import with_progress

    return with_progress(
        environment,
        f"measuring {plan.model.model_id}",
        lambda show: rehearse(request, planner, plan, show),
        quiet=output.quiet,
    )
