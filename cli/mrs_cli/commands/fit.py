"""`mrs fit`: which quantization of a model fits which machine, and what one gets there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrs.errors import ExitCode
from mrs.process.garbage import garbage_collection_paused
from mrs.request import RunRequest
from mrs_cli.environment import Environment
from mrs_cli.parsing.flags.command_flags import FitFlags, OutputFlags
from mrs_cli.render.log_lines import log_to_stderr
from mrs_cli.render.plan.fit_table import fit_lines

if TYPE_CHECKING:
    from mrs.plan.report.fit import FormatFit, MachineFit


def show_fit(
    environment: Environment, output: OutputFlags, flags: FitFlags, request: RunRequest
) -> ExitCode:
    """Shows a table; the exit code is DOES_NOT_FIT if no format fits any machine."""
    from mrs.plan.report.fit import BESIDE, fit_here, fit_machine
    from mrs.run.planned_model import PlannedModel

    machines = flags.on or ([BESIDE.join(flags.device)] if flags.device else ())
    with (
        log_to_stderr(environment, quiet=output.quiet, verbose=output.verbose),
        garbage_collection_paused(),  # the headers and plans stay until the end
    ):
        planner = PlannedModel(request).planner
        fits = [
            fit_machine(text, planner, request, every_format=output.json or len(machines) == 1)
            for text in machines
        ] or [fit_here(planner, request)]
    if flags.html is not None:
        from mrs_cli.render.plan.html_page import write_page
        from mrs_cli.render.plan.plan_pages import fit_page

        write_page(Path(flags.html).expanduser(), fit_page(request.source.model_id, fits))
    if output.json:
        from mrs.plan.report.fit import untried

        document = {
            "model": request.source.model_id,
            "machines": [_machine(fit) for fit in fits],
            "notes": untried(fits),
        }
        environment.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    else:
        environment.stdout.writelines(f"{line}\n" for line in fit_lines(environment, fits))
    return ExitCode.DOES_NOT_FIT if all(f.best is None for f in fits) else ExitCode.DONE


def _machine(fit: MachineFit) -> dict[str, Any]:
    from mrs.plan.report.fit import first_token_s

    best = None if fit.best is None else fit.formats[fit.best].isq
    return {
        "machine": fit.name,
        "best": best,
        "needs": fit.needs or None,
        "remedies": [
            {
                "machine": each.machine,
                "decode_tokens_per_s": each.plan.speed.decode._asdict(),
                "first_token_s": first_token_s(each.plan),
            }
            for each in fit.remedies
        ],
        "formats": [_format(each) for each in fit.formats],
    }


def _format(fit: FormatFit) -> dict[str, Any]:
    return {
        "isq": fit.isq,
        "fits": fit.plan.fits,
        "missing_bytes": fit.plan.missing_bytes,
        "spilled_layers": fit.plan.spilled_layers,
        "weight_bytes": fit.plan.total_weight_bytes,
        "longest_tokens": fit.longest_tokens,
        "decode_tokens_per_s": fit.plan.speed.decode._asdict() if fit.plan.fits else None,
        "first_token_s": fit.first_token_s if fit.plan.fits else None,
        "perplexity_loss": None if fit.loss is None else fit.loss.share,
        "perplexity_loss_is_measured": fit.loss is not None and fit.loss.is_measured,
    }
