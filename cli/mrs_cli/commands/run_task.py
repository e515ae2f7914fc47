"""What one run of the program is to do, made from flags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from mrs.errors import UsageError
from mrs.request import RunRequest, Sampling
from mrs.request.sampling import SETTINGS
from mrs_cli.chat.chat_settings import SAVED
from mrs_cli.chat.saved_chat import SavedChat
from mrs_cli.chat.session_store import SessionFile
from mrs_cli.chat.tools.mcp_specs import NO_SERVERS, McpServers, allowed_tools, read_servers
from mrs_cli.commands.stdin_prompts import StdinForm
from mrs_cli.parsing.flags.command_flags import OutputFlags
from mrs_cli.parsing.flags.global_flags import GlobalFlags
from mrs_cli.parsing.flags.prompt_flags import Attach
from mrs_cli.parsing.flags.sampling_flags import AskFlags
from mrs_cli.parsing.model_requests import given_sampling, valid_text


@dataclass(frozen=True)
class RunTask:
    """`stdin` says how standard input is read; `-` asks for it at a terminal, too (`asks_stdin`).

    `sampling` has all settings, `chosen_by` says for those that a person chose where that was.
    `images` are paths or web addresses of the prompt's images, `videos` and `audio` likewise, and
    `files` paths of what goes with the first question. The model may call the tools of `servers`;
    those in `allowed_tools` need no permission. `resumed` is the session to continue, `find` makes
    the request of another model that a person names in the chat.
    """

    request: RunRequest
    sampling: Sampling
    chosen_by: Mapping[str, str]
    output: OutputFlags
    prompt: str | None = None
    images: tuple[str, ...] = ()
    videos: tuple[str, ...] = ()
    audio: tuple[str, ...] = ()
    system: str | None = None
    interactive: bool = False
    stdin: StdinForm = StdinForm.WHOLE
    asks_stdin: bool = False
    attach: Attach = "auto"
    log: str | None = None
    resumed: ResumedSession | None = None
    files: tuple[str, ...] = ()
    servers: McpServers = NO_SERVERS
    allowed_tools: frozenset[str] = frozenset()
    find: Callable[[str], RunRequest] | None = None


class ResumedSession(NamedTuple):
    """What a session has kept, and its file."""

    chat: SavedChat
    file: SessionFile


def resumed_session(flags: GlobalFlags) -> ResumedSession | None:
    """The session of `--continue` or `--session`, if one of these is given. Raises MrsError."""
    if not flags.resume and flags.session is None:
        return None
    from mrs_cli.chat.session_store import find_session, last_session

    if flags.resume and flags.session is not None:
        raise UsageError("--continue and --session exclude each other", hint="give one of the two")
    stored = last_session() if flags.session is None else find_session(flags.session)
    chat = stored.load()
    return ResumedSession(chat, SessionFile.of(stored, chat))


def run_task(
    flags: GlobalFlags,
    ask: AskFlags,
    output: OutputFlags,
    request: RunRequest,
    *,
    asks_stdin: bool,
    find: Callable[[str], RunRequest] | None = None,
) -> RunTask:
    """The task that flags describe; UsageError if they contradict each other."""
    prompt = _prompt(ask.prompt or ())
    if ask.audio and prompt is None and not ask.each_line and not ask.jsonl:
        prompt = ""  # what is said in it is asked
    given_media = {"--image": ask.image, "--video": ask.video, "--audio": ask.audio}
    for flag in (flag for flag, given in given_media.items() if given):
        _check_media(flag, prompt, request)
    if flags.log == "":
        raise UsageError("--log is empty", hint="give a file name")
    resumed = resumed_session(flags)
    given = given_sampling(ask) | ({} if flags.seed is None else {"seed": flags.seed})
    chosen_by = dict.fromkeys(SETTINGS, SAVED) if resumed else {}
    system = None if ask.system is None else valid_text(ask.system)
    return RunTask(
        request=request,
        sampling=replace(resumed.chat.sampling if resumed else Sampling(), **given),
        chosen_by=chosen_by | dict.fromkeys(given, "flag"),
        output=output,
        prompt=prompt,
        images=tuple(ask.image or ()),
        videos=tuple(ask.video or ()),
        audio=tuple(ask.audio or ()),
        system=resumed.chat.system if resumed and system is None else system,
        interactive=flags.interactive_mode or resumed is not None,
        stdin=_stdin_form(flags, ask),
        asks_stdin=asks_stdin,
        attach=ask.attach or "auto",
        log=flags.log,
        resumed=resumed,
        files=tuple(ask.file or ()),
        servers=_servers(ask),
        allowed_tools=allowed_tools(ask.allow_tools or ()),
        find=find,
    )


def _servers(ask: AskFlags) -> McpServers:
    """The MCP servers. Raises UsageError."""
    if not ask.mcp and ask.mcp_config is None:
        if ask.allow_tools:
            raise UsageError("--allow-tools needs tools", hint="add --mcp or --mcp-config")
        return NO_SERVERS
    if ask.grammar is not None or ask.json_schema is not None:
        raise UsageError(
            "--mcp and a grammar exclude each other", hint="leave out --grammar or --json-schema"
        )
    return read_servers(ask.mcp or (), ask.mcp_config)


def _prompt(given: Sequence[str]) -> str | None:
    if len(given) > 1:
        raise UsageError(
            f"--prompt is given {len(given)} times",
            hint="give one prompt, or pipe several in with --each-line",
        )
    if given and not given[0].strip():
        raise UsageError("--prompt is empty", hint="give it a text")
    return valid_text(given[0]) if given else None


def _stdin_form(flags: GlobalFlags, ask: AskFlags) -> StdinForm:
    for flag, is_given in (("--each-line", ask.each_line), ("--jsonl", ask.jsonl)):
        if is_given and flags.interactive_mode:
            raise UsageError(f"{flag} and -i exclude each other", hint="give one of the two")
    if ask.jsonl and (ask.prompt or ask.image or ask.video or ask.audio or ask.file):
        raise UsageError("--jsonl has its prompts in the lines", hint="leave out the prompt")
    if ask.jsonl:
        return StdinForm.JSON_LINES
    return StdinForm.LINES if ask.each_line else StdinForm.WHOLE


def _check_media(flag: str, prompt: str | None, request: RunRequest) -> None:
    if prompt is None:
        raise UsageError(f"{flag} needs a prompt", hint="add --prompt TEXT")
    if request.vision is not None:
        return
    needed, example = (
        ("a model that hears", "Qwen/Qwen3-ASR-1.7B")
        if flag == "--audio"
        else ("a vision model", "demo-vision")
    )
    hint = f"take one such as {example}, without `plain`"
    if request.source.container == "gguf" and flag != "--audio":
        hint = "name its projector with --mmproj FILE, or take another model"
    name = request.source.model_id
    raise UsageError(f"{flag} needs {needed}, and {name} is run for text only", hint=hint)
