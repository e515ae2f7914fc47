"""The commands, wiring only: `mrs [global flags] SELECTOR [selector flags]`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer
from typer import Option

from mrs.errors import ExitCode, UsageError
from mrs_cli.environment import Environment
from mrs_cli.exit import ended, ending_on_sigterm
from mrs_cli.parsing import model_requests as ask
from mrs_cli.parsing.command_tree import Command, Group, takes
from mrs_cli.parsing.flags import (
    AskFlags,
    BenchFlags,
    BenchGlobalFlags,
    CacheFlags,
    GlobalFlags,
    OutputFlags,
    PlanFlags,
    PlanGlobalFlags,
    PlanningFlags,
    StdinFlags,
    merged,
)
from mrs_cli.parsing.selectors import SELECTORS, Call, Selector
from mrs_cli.render.error_lines import usage_error
from mrs_cli.render.safe_text import either

EXAMPLES = """\b
Examples:
  mrs -i plain -m demo
  mrs plain -m demo -P "What is a KV cache?"
  mrs -i --isq q4k plain -m meta-llama/Llama-3.3-70B-Instruct
  mrs -n "0:16;1:16" gguf -m FOLDER -f MODEL.gguf < prompts.txt
  mrs plan --dry-run -m meta-llama/Llama-3.3-70B-Instruct
"""

PLAN_HELP = "Show where every byte of a model would go; without --dry-run, load it and measure."

BENCH_HELP = "Time a model: prompt, reply, and the share of memory's speed that decoding reaches."

CACHE_HELP = "Show what was downloaded: mrs cache list."

LIST_HELP = "List the models in the hub's cache that can be run, and their sizes."

PLAN_EXAMPLES = """\b
Examples:
  mrs plan --dry-run
  mrs plan --dry-run -m ID --device cuda:0=24GiB --device cpu=64GiB
  mrs --isq q4k plan --dry-run --solve max-seq-len plain -m ID
  mrs plan --dry-run --json plain -m ID > plan.json
  mrs --plan plan.json -i plain -m ID
"""


def _show_version(given: bool) -> None:
    if given:
        import mrs_cli

        typer.echo(f"mrs {mrs_cli.version()}")
        raise typer.Exit


@dataclass(frozen=True)
class RootFlags:
    """Flags of `mrs` itself."""

    version: Annotated[
        bool,
        Option(
            "--version",
            help="Show the version and exit.",
            is_eager=True,
            callback=_show_version,
            rich_help_panel="Program",
        ),
    ] = False


@takes(GlobalFlags, AskFlags, OutputFlags, RootFlags)
def root(
    ctx: typer.Context, flags: GlobalFlags, asked: AskFlags, output: OutputFlags, _: RootFlags
) -> None:
    """Plan, load and run large language models on whatever devices you have."""
    if ctx.invoked_subcommand is None:
        names = either([selector.name for selector in SELECTORS])
        raise UsageError("no model is named", hint=f"add {names}, such as: mrs -i plain -m demo")
    ctx.obj = Call(ctx.obj, flags, asked, output)


def _runner(selector: Selector) -> Callable[..., None]:
    @takes(selector.flags, PlanningFlags, AskFlags, OutputFlags, StdinFlags)
    def command(
        ctx: typer.Context,
        model: Any,
        planning: PlanningFlags,
        asked: AskFlags,
        output: OutputFlags,
        stdin: StdinFlags,
    ) -> None:
        call: Call = ctx.obj
        if stdin.source not in (None, "-"):
            raise UsageError(
                f"{selector.name} takes no {stdin.source!r}",
                hint='ask with --prompt "TEXT", or - to read prompts from standard input',
            )
        task = ask.task(
            call.flags,
            merged(call.ask, asked),
            merged(call.output, output),
            selector.request(call.flags, model, planning),
            stdin=stdin.source == "-",
        )
        from mrs_cli.commands.run import run

        raise typer.Exit(run(call.environment, task, stdin=stdin.source == "-"))

    return command


@takes(PlanFlags, PlanGlobalFlags, PlanningFlags, OutputFlags)
def plan(
    ctx: typer.Context,
    planned: PlanFlags,
    flags: PlanGlobalFlags,
    planning: PlanningFlags,
    output: OutputFlags,
) -> None:
    call: Call = ctx.obj
    call = replace(
        call, flags=merged(call.flags, flags), output=merged(call.output, output), plan=planned
    )
    if ctx.invoked_subcommand is not None:
        ctx.obj = replace(call, planning=planning)
        return
    from mrs_cli.commands.plan import find_request, show_plan

    request = find_request(call.flags, planned, planning)
    raise typer.Exit(show_plan(call.environment, call.output, planned, request))


def _planner(selector: Selector) -> Callable[..., None]:
    @takes(selector.flags, PlanningFlags, OutputFlags)
    def command(
        ctx: typer.Context, model: Any, planning: PlanningFlags, output: OutputFlags
    ) -> None:
        call: Call = ctx.obj
        from mrs_cli.commands.plan import refuse_shorthand, show_plan

        refuse_shorthand(call.plan, selector.name)
        request = selector.request(call.flags, model, merged(call.planning, planning))
        output = merged(call.output, output)
        raise typer.Exit(show_plan(call.environment, output, call.plan, request))

    return command


@takes(BenchFlags, BenchGlobalFlags, OutputFlags)
def bench(
    ctx: typer.Context, bench: BenchFlags, flags: BenchGlobalFlags, output: OutputFlags
) -> None:
    call: Call = ctx.obj
    ctx.obj = replace(
        call, flags=merged(call.flags, flags), output=merged(call.output, output), bench=bench
    )


def _bencher(selector: Selector) -> Callable[..., None]:
    @takes(selector.flags, PlanningFlags, OutputFlags)
    def command(
        ctx: typer.Context, model: Any, planning: PlanningFlags, output: OutputFlags
    ) -> None:
        call: Call = ctx.obj
        from mrs_cli.commands.bench import run_bench

        request = selector.request(call.flags, model, planning)
        raise typer.Exit(
            run_bench(call.environment, merged(call.output, output), call.bench, request)
        )

    return command


@takes(CacheFlags, OutputFlags)
def list_cache(ctx: typer.Context, flags: CacheFlags, output: OutputFlags) -> None:
    call: Call = ctx.obj
    from mrs_cli.commands import cache

    flags = merged(CacheFlags(prefix_cache_dir=call.flags.prefix_cache_dir), flags)
    raise typer.Exit(cache.list_cache(call.environment, merged(call.output, output), flags))


def command_tree() -> Any:
    """The whole command line, as the object that parses, helps and documents."""
    app = typer.Typer(
        cls=Group,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback(
        invoke_without_command=True,
        epilog=EXAMPLES,
        subcommand_metavar="COMMAND [FLAGS]",
    )(root)
    _add_selectors(app, _runner)
    plans = _with_selectors(plan, _planner, may_stand_alone=True)
    app.add_typer(plans, name="plan", help=PLAN_HELP, epilog=PLAN_EXAMPLES)
    app.add_typer(_with_selectors(bench, _bencher), name="bench", help=BENCH_HELP)
    caches = typer.Typer(cls=Group, rich_markup_mode=None)
    caches.callback(subcommand_metavar="list [FLAGS]")(lambda: None)
    caches.command("list", help=LIST_HELP, cls=Command, options_metavar="[FLAGS]")(list_cache)
    app.add_typer(caches, name="cache", help=CACHE_HELP)
    return typer.main.get_command(app)


def _with_selectors(
    callback: Callable[..., None],
    command: Callable[[Selector], Callable[..., None]],
    *,
    may_stand_alone: bool = False,
) -> typer.Typer:
    """A command that takes flags of its own and then a selector."""
    group = typer.Typer(
        cls=Group,
        rich_markup_mode=None,
    )
    group.callback(
        invoke_without_command=may_stand_alone,
        subcommand_metavar="[SELECTOR [FLAGS]]" if may_stand_alone else "SELECTOR [FLAGS]",
    )(callback)
    _add_selectors(group, command)
    return group


def _add_selectors(group: typer.Typer, command: Callable[[Selector], Callable[..., None]]) -> None:
    for selector in SELECTORS:
        group.command(selector.name, help=selector.help, cls=Command, options_metavar="[FLAGS]")(
            command(selector)
        )


def main(arguments: Sequence[str] | None = None, environment: Environment | None = None) -> int:
    """Runs the command line and returns its exit code; see `ExitCode`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    environment = environment or Environment.of_process()
    with ending_on_sigterm():
        return ended(environment, words, lambda: _dispatch(words, environment))


def _dispatch(words: list[str], environment: Environment) -> int:
    tree = command_tree()
    if environment.variables.get("_MRS_COMPLETE"):
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
        tree.main(words, prog_name="mrs")
    try:
        with tree.make_context("mrs", words or ["--help"], obj=environment) as ctx:
            tree.invoke(ctx)
    except typer.Exit as end:
        return end.exit_code
    except typer.TyperException as error:
        raise usage_error(error, tree) from error
    return ExitCode.DONE
