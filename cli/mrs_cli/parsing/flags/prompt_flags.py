"""Flags that say what to ask the model, and where prompts come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from typer import Argument

from mrs.request import Effort
from mrs_cli.parsing import shell_completion
from mrs_cli.parsing.flags.flags import Flags
from mrs_cli.parsing.flags.option import FIRST, USUAL, number, prompt_option

#: Whether a running server may answer a run.
Attach = Literal["auto", "never", "require"]


@dataclass(init=False, eq=False, repr=False)
class ChatFlags(Flags):
    """Flags of a chat; they go before the selector."""

    interactive_mode: Annotated[
        bool, prompt_option("-i", "--interactive-mode", help="Chat in the terminal."), FIRST
    ] = False
    resume: Annotated[
        bool,
        prompt_option(
            "--continue", help="Continue the last session, with its model if -m is not given."
        ),
    ] = False
    session: Annotated[
        str | None,
        prompt_option(
            "--session",
            metavar="ID|TITLE",
            help="Continue this session, which mrs sessions lists, with its model if -m is not "
            "given.",
        ),
    ] = None
    thinking: Annotated[
        str | None,
        prompt_option(
            "--thinking",
            "--enable-thinking",
            metavar="[true|false]",
            autocompletion=shell_completion.truths,
            help="Turn thinking on or off; without a switch in the template, off ends thoughts at "
            "once.",
            show_default="the template decides",
        ),
    ] = None
    reasoning_effort: Annotated[
        Effort | None,
        prompt_option(
            "--reasoning-effort",
            metavar="|".join(get_args(Effort)),
            case_sensitive=False,
            help="How long to think; off is --thinking false. Without levels in the chat template, "
            "a thought may have 10 % (minimal), 20, 50, 80 or 95 % of a reply's tokens.",
            show_default="the template decides",
        ),
    ] = None
    reasoning_budget: Annotated[
        int | None,
        number(
            prompt_option,
            "reasoning_budget",
            "N",
            "End a thought after N tokens; 0 is no thought, -1 no limit.",
            default="no limit",
        ),
    ] = None
    reasoning_budget_message: Annotated[
        str | None,
        prompt_option(
            "--reasoning-budget-message",
            metavar="TEXT",
            help="Put TEXT before the end of a thought that --reasoning-budget ends.",
            show_default="nothing",
        ),
    ] = None


@dataclass(init=False, eq=False, repr=False)
class PromptFlags(Flags):
    """The prompt; these flags go before or after the selector."""

    prompt: Annotated[
        list[str] | None,
        prompt_option(
            "-P",
            "--prompt",
            "--input",
            metavar="TEXT",
            help="Answer TEXT and exit; with -i, ask it first, then chat. What is piped in follows "
            "it, or takes the place of {stdin} in it.",
        ),
        FIRST,
    ] = None
    image: Annotated[
        list[str] | None,
        prompt_option(
            "--image",
            metavar="PATH",
            help="Image to ask about: a file or a web address. Needs a vision model, and may be "
            "given several times.",
        ),
        FIRST,
    ] = None
    video: Annotated[
        list[str] | None,
        prompt_option(
            "--video",
            metavar="PATH",
            help="Add a video to --prompt, from a file or a web address (Qwen-VL models only, and "
            "with the package av). May be given several times.",
        ),
    ] = None
    audio: Annotated[
        list[str] | None,
        prompt_option(
            "--audio",
            metavar="PATH",
            help="Audio file to transcribe or to ask about: a file or a web address. Needs a model "
            "that hears, and the package av; needs no --prompt. May be given several times.",
        ),
    ] = None
    file: Annotated[
        list[str] | None,
        prompt_option(
            "--file",
            metavar="PATH",
            help="File of the question: a text, a PDF file (with the package pypdf) or an image. "
            "May be given several times.",
        ),
        USUAL,
    ] = None
    mcp: Annotated[
        list[str] | None,
        prompt_option(
            "--mcp",
            metavar="COMMAND|URL",
            help="Let the model call the tools of an MCP server (with the package mcp): the "
            "command that starts it, or its address. May be given several times.",
        ),
    ] = None
    mcp_config: Annotated[
        str | None,
        prompt_option(
            "--mcp-config",
            metavar="FILE",
            help="Use the MCP servers in FILE, a JSON file with mcpServers.",
        ),
    ] = None
    allow_tools: Annotated[
        list[str] | None,
        prompt_option(
            "--allow-tools",
            metavar="NAMES|all",
            help="Call these tools without asking; separate their names with commas. Other calls "
            "need your consent, and are refused where nobody can be asked.",
        ),
    ] = None
    each_line: Annotated[
        bool,
        prompt_option("--each-line", help="Each line of standard input is a prompt of its own."),
        USUAL,
    ] = False
    jsonl: Annotated[
        bool,
        prompt_option(
            "--jsonl",
            help="Each line of standard input is a JSON object with a prompt and, if you like, a "
            "system prompt and an id; print one JSON object per reply.",
        ),
    ] = False
    system: Annotated[
        str | None, prompt_option("--system", metavar="TEXT", help="System prompt."), USUAL
    ] = None
    attach: Annotated[
        Attach | None,
        prompt_option(
            "--attach",
            metavar="|".join(get_args(Attach)),
            case_sensitive=False,
            help="Let a running server of yours answer if it has loaded the model with the same "
            "settings: the reply is the same, and nothing is loaded. require fails without such a "
            "server.",
            show_default="auto",
        ),
    ] = None


@dataclass(init=False, eq=False, repr=False)
class ModelWord(Flags):
    """The model as a word that is no flag."""

    words: Annotated[
        list[str] | None,
        Argument(
            rich_help_panel="Model",
            metavar="[MODEL]",
            autocompletion=shell_completion.all_models,
            help="The model, instead of -m.",
        ),
    ] = None


@dataclass(init=False, eq=False, repr=False)
class ModelAndQuestion(ModelWord):
    """The model and the question as words that are no flags."""

    words: Annotated[
        list[str] | None,
        Argument(
            rich_help_panel="Prompt",
            metavar="[MODEL] [QUESTION]",
            autocompletion=shell_completion.all_models,
            help="The model, unless -m names it, and the question. Instead of the question, - "
            "reads it from standard input; a pipe is read without that.",
        ),
    ] = None


@dataclass(init=False, eq=False, repr=False)
class PresetWord(Flags):
    """The preset of `mrs save`."""

    preset: Annotated[
        str,
        Argument(rich_help_panel="Model", metavar="NAME", help="Name of the preset."),
        USUAL,
    ]


@dataclass(init=False, eq=False, repr=False)
class ToolWords(Flags):
    """The coding agent of `mrs launch`, and what is passed on to it."""

    words: Annotated[
        list[str] | None,
        Argument(
            rich_help_panel="Prompt",
            metavar="TOOL [-- ARGUMENTS]",
            autocompletion=shell_completion.coding_agents,
            help="claude, codex, opencode or aider, and its own arguments.",
        ),
    ] = None


@dataclass(init=False, eq=False, repr=False)
class QuestionWord(ModelWord):
    """The question as a word that is no flag."""

    words: Annotated[
        list[str] | None,
        Argument(
            rich_help_panel="Prompt",
            metavar="[QUESTION]",
            help="The question, as with --prompt; - reads it from standard input, which a pipe "
            "does without.",
        ),
    ] = None
