"""The command line `mrs [global flags] SELECTOR [selector flags]`: only the wiring of commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import typer

from mrs.errors import ExitCode, MrsError, UsageError
from mrs.request import RunRequest
from mrs_cli.environment import Environment
from mrs_cli.exit import exit_code_of, exit_on_sigterm
from mrs_cli.parsing.command_tree import Commands, flag_command, flag_group, takes
from mrs_cli.parsing.flags.batch_flags import BatchFlags, BatchWords
from mrs_cli.parsing.flags.cluster_flags import WorkerFlags
from mrs_cli.parsing.flags.command_flags import (
    BenchFlags,
    CacheFlags,
    DeleteFlags,
    DoctorFlags,
    EvalFlags,
    FitFlags,
    OutputFlags,
    PlanFlags,
    QuantizeFlags,
    RootFlags,
    ServerWords,
    SessionWords,
    ShellFlags,
)
from mrs_cli.parsing.flags.embed_flags import ClassifyFlags, EmbedFlags, RerankFlags, TextFlags
from mrs_cli.parsing.flags.global_flags import (
    BenchGlobalFlags,
    GlobalFlags,
    LoadGlobalFlags,
    PlanGlobalFlags,
)
from mrs_cli.parsing.flags.merge import merged
from mrs_cli.parsing.flags.model_flags import AnyModelFlags
from mrs_cli.parsing.flags.no_effect_flags import without_effect
from mrs_cli.parsing.flags.planning_flags import PlanningFlags
from mrs_cli.parsing.flags.prompt_flags import (
    ModelAndQuestion,
    ModelWord,
    PresetWord,
    QuestionWord,
    ToolWords,
)
from mrs_cli.parsing.flags.sampling_flags import AskFlags
from mrs_cli.parsing.flags.server_flags import ModelsFlags, RouteFlags, ServerFlags
from mrs_cli.parsing.model_names import is_model_name
from mrs_cli.parsing.presets import with_presets
from mrs_cli.parsing.selectors import ANY, SELECTORS, Invocation, Selector
from mrs_cli.parsing.spellings import with_help_flag
from mrs_cli.render.error_lines import say


@dataclass(frozen=True)
class Action:
    """What is done with a model, and which flags that has, by the fields of `Invocation`.

    Flags of `before` go before the selector, those of `after` go after it. `mrs run`, and every
    other command that finds out the kind of the model, has both anywhere, and those of `words`
    instead of any in `after`.
    """

    start: Callable[[Invocation, RunRequest], int]
    before: Mapping[str, type]
    after: Mapping[str, type]
    words: Mapping[str, type]

    def commands(self) -> Commands:
        """A command for each selector."""
        return Commands({each.name: partial(self.command, each) for each in SELECTORS})

    def command(self, selector: Selector, name: str = "") -> Any:
        """The command of one selector; `name` if it is another than the selector's."""
        groups = self.groups(selector)

        @takes(selector.flags, *groups.values())
        def command(ctx: typer.Context, model: Any, *given: Any) -> None:
            raise typer.Exit(self.parsed(_with_given(ctx.obj, groups, given), selector, model))

        return flag_command(name or selector.name, command)

    def groups(self, selector: Selector) -> Mapping[str, type]:
        """The flags of the command of a selector, apart from those of the model."""
        return {**self.before, **self.after, **self.words} if selector is ANY else self.after

    def parsed(self, now: Invocation, selector: Selector, model: Any) -> int:
        """Starts with all flags, after the words among them are found to be model and question."""
        words = list(now.named.words or ())
        texts = list(now.texts.texts or ())
        if selector is ANY and not _is_named(model):
            if texts and is_model_name(texts[0]):
                model = merged(model, AnyModelFlags(model_id=texts[0]))
                now = replace(now, texts=TextFlags(texts=texts[1:]))
            elif words and words[0] != "-":
                model = merged(model, AnyModelFlags(model_id=words.pop(0)))
            elif resumed := _resumed_model(now):
                model = merged(model, AnyModelFlags(model_id=resumed))
        return self.started(_with_question(now, words, self, selector), selector, model)

    def started(self, now: Invocation, selector: Selector, model: Any) -> int:
        request = selector.request(now.flags, model, now.planning)
        if not now.output.quiet:
            for line in (*_notes(now, request), *without_effect(now.flags, request)):
                say(now.environment, line)
        return self.start(now, request)

    def group(self, name: str, more: Mapping[str, Callable[[], Any]] | None = None) -> Any:
        """The command, with a command for each selector and those of `more`."""

        @takes(*self.before.values())
        def callback(ctx: typer.Context, *given: Any) -> None:
            ctx.obj = _with_given(ctx.obj, self.before, given)
            if ctx.invoked_subcommand is None:
                raise no_model(f"mrs {name} -m demo")

        return flag_group(
            name,
            callback,
            Commands({**self.commands().builders, **(more or {})}),
            (ANY.flags, *{**self.after, **self.words}.values()),
            invoke_without_command=True,
        )


def _notes(now: Invocation, request: RunRequest) -> list[str]:
    """What a person should know of values of flags."""
    if request.isq is None or now.quantize.writes_gguf:
        return []
    from mrs.quantization.isq import mix_note

    return list(filter(None, [mix_note(request.isq)]))


def _with_given(before: Invocation, groups: Mapping[str, type], given: Sequence[Any]) -> Invocation:
    """`before` with the flags that were given later."""
    return replace(
        before,
        **{
            name: merged(getattr(before, name), flags)
            for name, flags in zip(groups, given, strict=True)
        },
    )


def _resumed_model(now: Invocation) -> str | None:
    """The model of the session that goes on; None without one. Raises MrsError."""
    from mrs_cli.commands.run_task import resumed_session

    resumed = resumed_session(now.flags)
    if resumed is not None and not resumed.chat.model_id:
        raise no_model("mrs --continue -m demo")
    return None if resumed is None else resumed.chat.model_id


def _is_named(model: AnyModelFlags) -> bool:
    """Whether flags name the model."""
    return any((model.model_id is not None, model.filename, model.from_uqff))


def _with_question(
    now: Invocation, words: list[str], action: Action, selector: Selector
) -> Invocation:
    """`now` with the question among the words that are no flags; - stays. UsageError."""
    if not words:
        return replace(now, named=ModelWord())
    question, *more = words
    kinds = (*(each.name for each in SELECTORS), "multi-model")
    if Commands.ALIASES.get(question, question) in kinds:
        raise UsageError(
            f"a flag of {question} is before it",
            hint=f"put -m and its other flags after {question}",
        )
    asks = "named" in action.after
    if more or not asks:
        unexpected = more[0] if more else question
        hint = "put the question in quotes" if asks else "leave it out"
        raise UsageError(f"unexpected argument {unexpected!r} after {selector.name}", hint=hint)
    if question == "-":
        return replace(now, named=ModelWord(words=["-"]))
    return replace(now, named=ModelWord(), ask=merged(now.ask, AskFlags(prompt=[question])))


def _run(now: Invocation, request: RunRequest) -> int:
    is_stdin = bool(now.named.words)
    if now.server.port is not None or now.server.uds is not None:
        return _serve(now, request, is_stdin=is_stdin)
    from mrs_cli.commands.run import run
    from mrs_cli.commands.run_task import run_task
    from mrs_cli.parsing.flags.server_flags import refuse_without_port

    refuse_without_port(now.server)
    find = _finder(now, request.source.cache_path)
    task = run_task(now.flags, now.ask, now.output, request, asks_stdin=is_stdin, find=find)
    return run(now.environment, task)


def _chat(now: Invocation, request: RunRequest) -> int:
    flags = merged(now.flags, GlobalFlags(interactive_mode=True))
    return _run(replace(now, flags=flags), request)


def _show(now: Invocation, request: RunRequest) -> int:
    return _plan(replace(now, plan=replace(now.plan, dry_run=True)), request)


def _pull(now: Invocation, request: RunRequest) -> int:
    from mrs_cli.commands.pull import pull

    return pull(now.environment, now.output, request)


def _plan(now: Invocation, request: RunRequest) -> int:
    if now.plan.solve is not None:
        flags = merged(now.fit, FitFlags(device=now.plan.device, html=now.plan.html))
        return _renamed(replace(now, fit=flags), request, "--solve")
    from mrs_cli.commands.plan import show_plan

    return show_plan(now.environment, now.output, now.plan, request)


def _fit(now: Invocation, request: RunRequest) -> int:
    from mrs_cli.commands.fit import show_fit

    return show_fit(now.environment, now.output, now.fit, request)


def _renamed(now: Invocation, request: RunRequest, old: str) -> int:
    """`mrs fit` under its old name, which is said in a line."""
    if not now.output.quiet:
        say(now.environment, f"note: {old} is mrs fit now")
    return _fit(now, request)


def _serve(now: Invocation, request: RunRequest, *, is_stdin: bool = False) -> int:
    from mrs_cli.commands.serve import refuse_prompts, run_server

    refuse_prompts(now.flags, now.ask, is_stdin=is_stdin)
    if now.server.ray or now.server.replicas or now.server.max_replicas:
        from mrs_cli.commands.fleet import serve_fleet

        return serve_fleet(now.environment, now.output, now.server, request, command_tree())
    return run_server(now.environment, now.output, now.server, request, _finder(now))


def _finder(now: Invocation, cache_path: str | None = None) -> Callable[[str], RunRequest]:
    """Makes the request of another model, which a client of the server or a chat names."""
    return lambda model_id: ANY.request(
        now.flags, AnyModelFlags(model_id=model_id, hf_cache_path=cache_path), now.planning
    )


def _multi_model() -> Any:
    @takes(ModelsFlags, *_PLANNED.values())
    def command(ctx: typer.Context, models: ModelsFlags, *given: Any) -> None:
        now = _with_given(ctx.obj, _PLANNED, given)
        from mrs_cli.commands.serve import refuse_prompts, run_server
        from mrs_cli.parsing.models_file import read_models

        refuse_prompts(now.flags, now.ask)
        requests = read_models(models.config, now.flags, now.planning, models.default_model_id)
        raise typer.Exit(
            run_server(now.environment, now.output, now.server, requests, _finder(now))
        )

    return flag_command("multi-model", command)


def _bench(now: Invocation, request: RunRequest) -> int:
    from mrs_cli.commands.bench import run_bench

    return run_bench(now.environment, now.output, now.bench, request)


def _eval(now: Invocation, request: RunRequest) -> int:
    from mrs_cli.commands.evaluate import run_eval

    find = _finder(now, request.source.cache_path)
    return run_eval(now.environment, now.output, now.evaluation, request, find)


def _embed(now: Invocation, request: RunRequest) -> int:
    from mrs_cli.commands.embed import run_embed

    return run_embed(now.environment, now.output, now.embed, now.texts, request)


def _rerank(now: Invocation, request: RunRequest) -> int:
    from mrs_cli.commands.rerank import run_rerank

    return run_rerank(now.environment, now.output, now.rerank, now.texts, request)


def _classify(now: Invocation, request: RunRequest) -> int:
    from mrs_cli.commands.classify import run_classify

    return run_classify(now.environment, now.output, now.classify, now.texts, request)


def _quantize(now: Invocation, request: RunRequest) -> int:
    from mrs_cli.commands.quantize import run_quantize

    return run_quantize(now.environment, now.output, now.quantize, request)


_PLANNED = {"planning": PlanningFlags, "output": OutputFlags}
RUN = Action(
    _run,
    {"flags": GlobalFlags, "ask": AskFlags, "output": OutputFlags, "server": ServerFlags},
    {**_PLANNED, "ask": AskFlags, "named": QuestionWord},
    {"named": ModelAndQuestion},
)
_NAMED = {"named": ModelWord}
PLAN = Action(_plan, {"plan": PlanFlags, "flags": PlanGlobalFlags, **_PLANNED}, _PLANNED, _NAMED)
FIT = Action(_fit, {"fit": FitFlags, "flags": PlanGlobalFlags, **_PLANNED}, _PLANNED, _NAMED)
TUNE = Action(partial(_renamed, old="tune"), FIT.before, FIT.after, _NAMED)
SERVE = Action(
    _serve, {"server": ServerFlags, "flags": LoadGlobalFlags, **_PLANNED}, _PLANNED, _NAMED
)
CHAT = Action(_chat, RUN.before, RUN.after, RUN.words)
SHOW = Action(_show, PLAN.before, PLAN.after, _NAMED)
PULL = Action(_pull, {"flags": LoadGlobalFlags, **_PLANNED}, _PLANNED, _NAMED)
EMBED = Action(
    _embed,
    {"embed": EmbedFlags, "flags": LoadGlobalFlags, **_PLANNED},
    {**_PLANNED, "embed": EmbedFlags, "texts": TextFlags},
    {},
)
RERANK = Action(
    _rerank,
    {"rerank": RerankFlags, "flags": LoadGlobalFlags, **_PLANNED},
    {**_PLANNED, "rerank": RerankFlags, "texts": TextFlags},
    {},
)
CLASSIFY = Action(
    _classify,
    {"classify": ClassifyFlags, "flags": LoadGlobalFlags, **_PLANNED},
    {**_PLANNED, "classify": ClassifyFlags, "texts": TextFlags},
    {},
)
_QUANTIZED = {**_PLANNED, "quantize": QuantizeFlags}
QUANTIZE = Action(_quantize, {"flags": LoadGlobalFlags, **_QUANTIZED}, _QUANTIZED, _NAMED)
BENCH = Action(
    _bench, {"bench": BenchFlags, "flags": BenchGlobalFlags, **_PLANNED}, _PLANNED, _NAMED
)


_EVALUATED = {**_PLANNED, "evaluation": EvalFlags}
EVAL = Action(_eval, {"flags": LoadGlobalFlags, **_EVALUATED}, _EVALUATED, _NAMED)


@takes(*RUN.before.values(), RootFlags)
def root(ctx: typer.Context, *given: Any) -> None:
    """Plan, load and run large language models on whatever devices you have."""
    ctx.obj = _with_given(Invocation(ctx.obj), RUN.before, given[:-1])
    if ctx.invoked_subcommand is None:
        model_id = _resumed_model(ctx.obj)
        if model_id is None:
            raise no_model("mrs -i -m demo")
        raise typer.Exit(RUN.started(ctx.obj, ANY, AnyModelFlags(model_id=model_id)))


def no_model(example: str) -> UsageError:
    """No model is given to a command."""
    return UsageError("no model is given", hint=f"add -m ID, such as: {example}")


def _cache() -> Any:
    commands = Commands({"list": _list_cache, "delete": partial(_delete_model, "delete")})
    return flag_group("cache", lambda: None, commands)


def _delete_model(name: str) -> Any:
    @takes(CacheFlags, DeleteFlags, ModelWord)
    def command(
        ctx: typer.Context, flags: CacheFlags, model: DeleteFlags, named: ModelWord
    ) -> None:
        from mrs_cli.commands.cache import delete_model

        given = [model.model_id] if model.model_id is not None else []
        model_ids = [*given, *(named.words or ())]
        if not model_ids:
            raise no_model(f"mrs {name} -m ID")
        for model_id in model_ids:
            if model_id.startswith("@"):
                from mrs_cli.commands.presets import remove_preset

                remove_preset(ctx.obj.environment, model_id, command_tree().commands["save"])
                continue
            delete_model(ctx.obj.environment, flags, model_id, is_sure=model.yes)

    return flag_command(name, command)


def _save() -> Any:
    @takes(PresetWord, ANY.flags, *{**RUN.before, **_PLANNED}.values())
    def command(ctx: typer.Context, word: PresetWord, *_: Any) -> None:
        from mrs_cli.commands.presets import given_flags, save_preset

        given = given_flags(ctx.command, ctx.params)
        raise typer.Exit(save_preset(ctx.obj.environment, word.preset, given))

    return flag_command("save", command)


def _show_command() -> Any:
    groups = SHOW.groups(ANY)

    @takes(ANY.flags, *groups.values())
    def command(ctx: typer.Context, model: Any, *given: Any) -> None:
        now = _with_given(ctx.obj, groups, given)
        name = (now.named.words or [""])[0]
        if not name.startswith("@"):
            raise typer.Exit(SHOW.parsed(now, ANY, model))
        from mrs_cli.commands.presets import show_preset

        save = command_tree().commands["save"]
        raise typer.Exit(show_preset(now.environment, now.output, name, save))

    return flag_command("show", command)


def _launch() -> Any:
    @takes(ANY.flags, LoadGlobalFlags, *_PLANNED.values(), ToolWords)
    def command(ctx: typer.Context, model: Any, flags: Any, *given: Any) -> None:
        now = _with_given(ctx.obj, {"flags": LoadGlobalFlags, **_PLANNED}, (flags, *given[:-1]))
        from mrs_cli.commands.launch import launch

        words = given[-1].words or []
        if not _is_named(model):
            raise no_model(f"mrs launch {words[0] if words else 'claude'} -m ID")
        request = ANY.request(now.flags, model, now.planning)
        raise typer.Exit(launch(now.environment, now.output, request, words))

    return flag_command("launch", command)


def _batch() -> Any:
    groups = {"flags": LoadGlobalFlags, **_PLANNED}

    @takes(ANY.flags, *groups.values(), BatchFlags, BatchWords)
    def command(ctx: typer.Context, model: Any, *given: Any) -> None:
        *settings, flags, named = given
        now = _with_given(ctx.obj, groups, settings)
        from mrs_cli.commands.batch import run_batch
        from mrs_cli.commands.serve import refuse_prompts

        refuse_prompts(now.flags, now.ask, "a batch")
        words = list(named.words or ())
        if not _is_named(model):
            if len(words) < 2:
                raise no_model("mrs batch -m ID FILE.jsonl")
            model = merged(model, AnyModelFlags(model_id=words.pop(0)))
        request = ANY.request(now.flags, model, now.planning)
        raise typer.Exit(run_batch(now.environment, now.output, flags, request, words))

    return flag_command("batch", command)


def _list_servers() -> Any:
    @takes(OutputFlags)
    def command(ctx: typer.Context, output: OutputFlags) -> None:
        from mrs_cli.commands.running_servers import list_servers

        list_servers(ctx.obj.environment, merged(ctx.obj.output, output))

    return flag_command("ps", command)


def _stop_servers() -> Any:
    @takes(ServerWords)
    def command(ctx: typer.Context, words: ServerWords) -> None:
        from mrs_cli.commands.running_servers import stop_servers

        stop_servers(ctx.obj.environment, words.servers or ())

    return flag_command("stop", command)


def _route() -> Any:
    @takes(RouteFlags, OutputFlags)
    def command(ctx: typer.Context, flags: RouteFlags, output: OutputFlags) -> None:
        from mrs_cli.commands.route import route

        route(ctx.obj.environment, merged(ctx.obj.output, output), flags)

    return flag_command("route", command)


def _sessions() -> Any:
    @takes(OutputFlags, SessionWords)
    def command(ctx: typer.Context, output: OutputFlags, words: SessionWords) -> None:
        from mrs_cli.commands.sessions import list_sessions

        list_sessions(ctx.obj.environment, merged(ctx.obj.output, output), words.words or ())

    return flag_command("sessions", command)


def _doctor() -> Any:
    @takes(OutputFlags, DoctorFlags)
    def command(ctx: typer.Context, output: OutputFlags, flags: DoctorFlags) -> None:
        from mrs_cli.commands.doctor import run_doctor

        raise typer.Exit(run_doctor(ctx.obj.environment, merged(ctx.obj.output, output), flags))

    return flag_command("doctor", command)


def _completions() -> Any:
    @takes(ShellFlags)
    def command(ctx: typer.Context, flags: ShellFlags) -> None:
        from mrs_cli.commands.completions import completion

        ctx.obj.environment.stdout.write(completion(flags.shell))

    return flag_command("completions", command)


def _list_cache() -> Any:
    @takes(CacheFlags, OutputFlags)
    def command(ctx: typer.Context, flags: CacheFlags, output: OutputFlags) -> None:
        before: Invocation = ctx.obj
        from mrs_cli.commands.cache import list_cache

        flags = merged(CacheFlags(prefix_cache_dir=before.flags.prefix_cache_dir), flags)
        raise typer.Exit(list_cache(before.environment, merged(before.output, output), flags))

    return flag_command("list", command)


def _worker() -> Any:
    @takes(WorkerFlags, OutputFlags)
    def command(ctx: typer.Context, flags: WorkerFlags, output: OutputFlags) -> None:
        before: Invocation = ctx.obj
        from mrs_cli.commands.worker import work

        raise typer.Exit(work(before.environment, merged(before.output, output), flags))

    return flag_command("worker", command)


@cache
def command_tree() -> Any:
    """All commands, as the object that parses, helps and documents."""
    models = {"multi-model": _multi_model}
    commands = Commands(
        {
            **RUN.commands().builders,
            "chat": partial(CHAT.command, ANY, "chat"),
            "serve": partial(SERVE.group, "serve", models),
            **models,
            "sessions": _sessions,
            "save": _save,
            "launch": _launch,
            "ps": _list_servers,
            "stop": _stop_servers,
            "route": _route,
            "batch": _batch,
            "embed": partial(EMBED.group, "embed"),
            "rerank": partial(RERANK.group, "rerank"),
            "classify": partial(CLASSIFY.group, "classify"),
            "worker": _worker,
            "plan": partial(PLAN.group, "plan"),
            "fit": partial(FIT.group, "fit"),
            "tune": partial(TUNE.group, "tune"),
            "bench": partial(BENCH.group, "bench"),
            "eval": partial(EVAL.group, "eval"),
            "doctor": _doctor,
            "pull": partial(PULL.command, ANY, "pull"),
            "list": _list_cache,
            "show": _show_command,
            "rm": partial(_delete_model, "rm"),
            "quantize": partial(QUANTIZE.group, "quantize"),
            "cache": _cache,
            "completions": _completions,
        }
    )
    return flag_group(
        "",
        root,
        commands,
        (ANY.flags, *{**RUN.after, **RUN.words}.values()),
        invoke_without_command=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )


def main(arguments: Sequence[str] | None = None, environment: Environment | None = None) -> int:
    """Runs the command line and returns its exit code; see `ExitCode`."""
    words = with_help_flag(list(sys.argv[1:] if arguments is None else arguments))
    # Searched, not parsed: the parser itself may fail.
    environment = replace(environment or Environment.of_process(), json_errors="--json" in words)
    with exit_on_sigterm():
        return exit_code_of(environment, words, lambda: _dispatch(words, environment))


def _dispatch(words: list[str], environment: Environment) -> int:
    tree = command_tree()
    if environment.variables.get("_MRS_COMPLETE"):
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
        tree.main(words, prog_name="mrs")
    words, preset_notes = with_presets(words, tree)
    words, notes, sources = _with_settings(words, environment, tree)
    notes = [*preset_notes, *notes]
    if "-q" not in words and "--quiet" not in words:
        for note in notes:
            say(environment, note)
    try:
        environment = replace(environment, words=tuple(words))
        with tree.make_context("mrs", words or ["--help"], obj=environment) as ctx:
            tree.invoke(ctx)
    except typer.Exit as end:
        return end.exit_code
    except typer.TyperException as error:
        from mrs_cli.parsing.usage_errors import usage_error

        raise _with_source(usage_error(error, tree), sources) from error
    except UsageError as error:
        raise _with_source(error, sources) from error
    return ExitCode.DONE


def _with_settings(
    words: list[str], environment: Environment, tree: Any
) -> tuple[list[str], list[str], Mapping[str, str]]:
    """The words with the flags of variables and of a file, notes, and where these flags stand."""
    has_variables = any(name.startswith("MRS_") for name in environment.variables)
    if not has_variables and not any(word.startswith("--config") for word in words):
        return words, [], {}
    from mrs_cli.parsing.settings import with_settings

    return with_settings(words, tree, environment.variables)


def _with_source(error: MrsError, sources: Mapping[str, str]) -> MrsError:
    """An error that names a flag, with the place where the flag stands if that is another."""
    if not sources or not isinstance(error, UsageError):
        return error
    from mrs_cli.parsing.settings import with_source

    return with_source(error, sources)
