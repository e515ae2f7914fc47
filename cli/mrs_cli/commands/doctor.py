"""`mrs doctor`: what of the program works on this machine."""

from __future__ import annotations

from dataclasses import asdict

from mrs.doctor.gpu import examine_gpus
from mrs.doctor.machine import Check, examine
from mrs.errors import ExitCode
from mrs_cli.environment import Environment
from mrs_cli.parsing.flags.command_flags import DoctorFlags, OutputFlags
from mrs_cli.render.safe_text import json_text, printable


def run_doctor(environment: Environment, output: OutputFlags, flags: DoctorFlags) -> ExitCode:
    """Prints each check as it ends, or all of them as JSON."""
    checks = examine_gpus() if flags.gpu else examine()
    if output.json:
        document = {"checks": [asdict(check) for check in checks]}
        environment.stdout.write(json_text(document) + "\n")
        return ExitCode.DONE
    for check in checks:
        environment.stdout.write(printable(_line(check)) + "\n")
        environment.stdout.flush()
    return ExitCode.DONE


def _line(check: Check) -> str:
    cure = f"; {check.cure}" if check.cure else ""
    return f"{check.state:<5}{check.name:<17}{check.found}{cure}"
