"""The command line `mrs [global flags] SELECTOR [selector flags]`: only the wiring of commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import typer

from mrs.errors import ExitCode, UsageError
from mrs.request import RunRequest
from mrs_cli.environment import Environment
from mrs_cli.exit import exit_code_of, exit_on_sigterm
from mrs_cli.parsing.command_tree import Commands, flag_command, flag_group, takes
from mrs_cli.parsing.flags.cluster_flags import WorkerFlags
from mrs_cli.parsing.flags.command_flags import BenchFlags, CacheFlags, OutputFlags, PlanFlags
from mrs_cli.parsing.flags.global_flags import (
    BenchGlobalFlags,
    GlobalFlags,
    LoadGlobalFlags,
    PlanGlobalFlags,
)
from mrs_cli.parsing.flags.merge import merged
from mrs_cli.parsing.flags.option import general_option
from mrs_cli.parsing.flags.planning_flags import PlanningFlags
from mrs_cli.parsing.flags.prompt_flags import StdinFlags
from mrs_cli.parsing.flags.sampling_flags import AskFlags
from mrs_cli.parsing.flags.server_flags import ModelsFlags, ServeFlags, ServerFlags
from mrs_cli.parsing.selectors import SELECTORS, Invocation, Selector

EXAMPLES = """\b
Examples:
  mrs -i plain -m demo
  mrs plain -m demo -P "What is a KV cache?"
  mrs -i --isq q4k plain -m meta-llama/Llama-3.3-70B-Instruct
  mrs -n "0:16;1:16" gguf -m FOLDER -f MODEL.gguf < prompts.txt
  mrs --port 1234 plain -m demo
  mrs plan --dry-run -m meta-llama/Llama-3.3-70B-Instruct
"""

SERVE_HELP = "Serve a model with the HTTP interface of OpenAI: mrs serve -m ID."

MODELS_HELP = "Serve several models, which are loaded when they are asked for."

SERVE_EXAMPLES = """\b
Examples:
  mrs serve -m demo
  mrs serve -p 8080 --isq q4k -m meta-llama/Llama-3.3-70B-Instruct
  mrs serve --serve-ip 0.0.0.0 --api-key-file KEYS gguf -m FOLDER -f FILE.gguf
  mrs serve --keep-alive 5m multi-model --config models.json
"""

PLAN_HELP = "Show how a model will use memory; without --dry-run, load it and measure."

BENCH_HELP = "Measure how fast a model is, and how much of the memory bandwidth it uses."

CACHE_HELP = "Show downloaded models: mrs cache list."

WORKER_HELP = "Compute some layers of a model for mrs --wait-for N on another machine."

LIST_HELP = "List the models in the hub cache that mrs can run, with their sizes."

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
        general_option(
            "--version", help="Show the version and exit.", is_eager=True, callback=_show_version
        ),
    ] = False


@takes(GlobalFlags, AskFlags, OutputFlags, ServerFlags, RootFlags)
def root(
    ctx: typer.Context,
    flags: GlobalFlags,
    asked: AskFlags,
    output: OutputFlags,
    server: ServerFlags,
    _: RootFlags,
) -> None:
    """Plan, load and run large language models on whatever devices you have."""
    if ctx.invoked_subcommand is None:
        from mrs_cli.parsing.usage_errors import either

        names = either([selector.name for selector in SELECTORS])
        raise UsageError("no model is given", hint=f"add {names}, such as: mrs -i plain -m demo")
    ctx.obj = Invocation(ctx.obj, flags, asked, output, server=server)


def _run_command(selector: Selector) -> Any:
    @takes(selector.flags, PlanningFlags, AskFlags, OutputFlags, StdinFlags)
    def command(
        ctx: typer.Context,
        model: Any,
        planning: PlanningFlags,
        asked: AskFlags,
        output: OutputFlags,
        stdin: StdinFlags,
    ) -> None:
        before: Invocation = ctx.obj
        if stdin.source not in (None, "-"):
            raise UsageError(
                f"unexpected argument {stdin.source!r} after {selector.name}",
                hint='ask with --prompt "TEXT", or use - to read prompts from standard input',
            )
        request = selector.request(before.flags, model, planning)
        asked, output = merged(before.ask, asked), merged(before.output, output)
        is_stdin = stdin.source == "-"
        if before.server.port is not None:
            from mrs_cli.commands.serve import refuse_prompts, run_server

            refuse_prompts(before.flags, asked, is_stdin=is_stdin)
            find = _finder(before.flags, planning)
            raise typer.Exit(run_server(before.environment, output, before.server, request, find))
        from mrs_cli.commands.run import run
        from mrs_cli.commands.run_task import run_task
        from mrs_cli.parsing.flags.server_flags import refuse_without_port

        refuse_without_port(before.server)
        task = run_task(before.flags, asked, output, request, stdin=is_stdin)
        raise typer.Exit(run(before.environment, task))

    return flag_command(selector.name, selector.help, command)


def _plan() -> Any:
    @takes(PlanFlags, PlanGlobalFlags, PlanningFlags, OutputFlags)
    def plan(
        ctx: typer.Context,
        planned: PlanFlags,
        given: PlanGlobalFlags,
        planning: PlanningFlags,
        output: OutputFlags,
    ) -> None:
        before: Invocation = ctx.obj
        flags, output = merged(before.flags, given), merged(before.output, output)
        if ctx.invoked_subcommand is not None:
            ctx.obj = replace(before, flags=flags, output=output, plan=planned, planning=planning)
            return
        from mrs_cli.commands.plan import find_request, show_plan

        request = find_request(flags, planned, planning)
        raise typer.Exit(show_plan(before.environment, output, planned, request))

    return flag_group(
        plan,
        _selector_commands(_plan_command),
        name="plan",
        help=PLAN_HELP,
        epilog=PLAN_EXAMPLES,
        invoke_without_command=True,
        subcommand_metavar="[SELECTOR [FLAGS]]",
    )


def _plan_command(selector: Selector) -> Any:
    @takes(selector.flags, PlanningFlags, OutputFlags)
    def command(
        ctx: typer.Context, model: Any, planning: PlanningFlags, output: OutputFlags
    ) -> None:
        before: Invocation = ctx.obj
        from mrs_cli.commands.plan import refuse_shorthand, show_plan

        refuse_shorthand(before.plan, selector.name)
        request = selector.request(before.flags, model, merged(before.planning, planning))
        output = merged(before.output, output)
        raise typer.Exit(show_plan(before.environment, output, before.plan, request))

    return flag_command(selector.name, selector.help, command)


def _serve() -> Any:
    @takes(ServeFlags, LoadGlobalFlags, PlanningFlags, OutputFlags)
    def serve(
        ctx: typer.Context,
        served: ServeFlags,
        given: LoadGlobalFlags,
        planning: PlanningFlags,
        output: OutputFlags,
    ) -> None:
        before: Invocation = ctx.obj
        flags, output = merged(before.flags, given), merged(before.output, output)
        server = merged(ServeFlags(**vars(before.server)), served)
        if ctx.invoked_subcommand is not None:
            ctx.obj = replace(before, flags=flags, output=output, server=server, planning=planning)
            return
        from mrs_cli.commands.plan import find_request
        from mrs_cli.commands.serve import refuse_prompts, require_model, run_server

        require_model(server)
        refuse_prompts(flags, before.ask)
        request = find_request(flags, server, planning)
        find = _finder(flags, planning)
        raise typer.Exit(run_server(before.environment, output, server, request, find))

    return flag_group(
        serve,
        Commands(
            {
                **_selector_commands(_serve_command).builders,
                "multi-model": (MODELS_HELP, _multi_model),
            }
        ),
        name="serve",
        help=SERVE_HELP,
        epilog=SERVE_EXAMPLES,
        invoke_without_command=True,
        subcommand_metavar="[SELECTOR [FLAGS]]",
    )


def _serve_command(selector: Selector) -> Any:
    @takes(selector.flags, PlanningFlags, OutputFlags)
    def command(
        ctx: typer.Context, model: Any, planning: PlanningFlags, output: OutputFlags
    ) -> None:
        before: Invocation = ctx.obj
        from mrs_cli.commands.plan import refuse_shorthand
        from mrs_cli.commands.serve import refuse_prompts, run_server

        assert isinstance(before.server, ServeFlags)
        refuse_shorthand(before.server, selector.name)
        refuse_prompts(before.flags, before.ask)
        planning = merged(before.planning, planning)
        request = selector.request(before.flags, model, planning)
        output = merged(before.output, output)
        find = _finder(before.flags, planning)
        raise typer.Exit(run_server(before.environment, output, before.server, request, find))

    return flag_command(selector.name, selector.help, command)


def _multi_model() -> Any:
    @takes(ModelsFlags, PlanningFlags, OutputFlags)
    def command(
        ctx: typer.Context, models: ModelsFlags, planning: PlanningFlags, output: OutputFlags
    ) -> None:
        before: Invocation = ctx.obj
        from mrs_cli.commands.plan import refuse_shorthand
        from mrs_cli.commands.serve import refuse_prompts, run_server
        from mrs_cli.parsing.models_file import read_models

        refuse_prompts(before.flags, before.ask)
        if isinstance(before.server, ServeFlags):
            refuse_shorthand(before.server, "multi-model")
        planning = merged(before.planning, planning)
        requests = read_models(models.config, before.flags, planning, models.default_model_id)
        output = merged(before.output, output)
        find = _finder(before.flags, planning)
        raise typer.Exit(run_server(before.environment, output, before.server, requests, find))

    return flag_command("multi-model", MODELS_HELP, command)


def _finder(flags: GlobalFlags, planning: PlanningFlags) -> Callable[[str], RunRequest]:
    """Makes the request of a model that a client of the server names."""

    def find(model_id: str) -> RunRequest:
        from mrs_cli.commands.plan import find_request

        return find_request(flags, ServeFlags(model_id=model_id), planning)

    return find


def _bench() -> Any:
    @takes(BenchFlags, BenchGlobalFlags, OutputFlags)
    def bench(
        ctx: typer.Context, bench: BenchFlags, given: BenchGlobalFlags, output: OutputFlags
    ) -> None:
        before: Invocation = ctx.obj
        flags, output = merged(before.flags, given), merged(before.output, output)
        ctx.obj = replace(before, flags=flags, output=output, bench=bench)

    commands = _selector_commands(_bench_command)
    return flag_group(
        bench, commands, name="bench", help=BENCH_HELP, subcommand_metavar="SELECTOR [FLAGS]"
    )


def _bench_command(selector: Selector) -> Any:
    @takes(selector.flags, PlanningFlags, OutputFlags)
    def command(
        ctx: typer.Context, model: Any, planning: PlanningFlags, output: OutputFlags
    ) -> None:
        before: Invocation = ctx.obj
        from mrs_cli.commands.bench import run_bench

        request = selector.request(before.flags, model, planning)
        output = merged(before.output, output)
        raise typer.Exit(run_bench(before.environment, output, before.bench, request))

    return flag_command(selector.name, selector.help, command)


def _cache() -> Any:
    commands = Commands({"list": (LIST_HELP, _list_cache)})
    return flag_group(
        lambda: None, commands, name="cache", help=CACHE_HELP, subcommand_metavar="list [FLAGS]"
    )


def _list_cache() -> Any:
    @takes(CacheFlags, OutputFlags)
    def command(ctx: typer.Context, flags: CacheFlags, output: OutputFlags) -> None:
        before: Invocation = ctx.obj
        from mrs_cli.commands.cache import list_cache

        flags = merged(CacheFlags(prefix_cache_dir=before.flags.prefix_cache_dir), flags)
        raise typer.Exit(list_cache(before.environment, merged(before.output, output), flags))

    return flag_command("list", LIST_HELP, command)


def _worker() -> Any:
    @takes(WorkerFlags, OutputFlags)
    def command(ctx: typer.Context, flags: WorkerFlags, output: OutputFlags) -> None:
        before: Invocation = ctx.obj
        from mrs_cli.commands.worker import work

        raise typer.Exit(work(before.environment, merged(before.output, output), flags))

    return flag_command("worker", WORKER_HELP, command)


def _selector_commands(build: Callable[[Selector], Any]) -> Commands:
    return Commands({each.name: (each.help, partial(build, each)) for each in SELECTORS})


def command_tree() -> Any:
    """All commands, as the object that parses, helps and documents."""
    commands = Commands(
        {
            **_selector_commands(_run_command).builders,
            "plan": (PLAN_HELP, _plan),
            "serve": (SERVE_HELP, _serve),
            "multi-model": (MODELS_HELP, _multi_model),
            "bench": (BENCH_HELP, _bench),
            "worker": (WORKER_HELP, _worker),
            "cache": (CACHE_HELP, _cache),
        }
    )
    return flag_group(
        root,
        commands,
        epilog=EXAMPLES,
        invoke_without_command=True,
        subcommand_metavar="COMMAND [FLAGS]",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )


def main(arguments: Sequence[str] | None = None, environment: Environment | None = None) -> int:
    """Runs the command line and returns its exit code; see `ExitCode`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    environment = environment or Environment.of_process()
    with exit_on_sigterm():
        return exit_code_of(environment, words, lambda: _dispatch(words, environment))


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
        from mrs_cli.parsing.usage_errors import usage_error

        raise usage_error(error, tree) from error
    return ExitCode.DONE
