"""What one run of the program is to do, made from flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mrs.errors import UsageError
from mrs.request import RunRequest, Sampling
from mrs.request.sampling import SETTINGS
from mrs_cli.chat.chat_settings import SAVED
from mrs_cli.chat.saved_chat import SavedChat
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
    `images` are paths or web addresses of the prompt's images, `videos` those of its videos;
    `resumed` is the chat to continue.
    """

    request: RunRequest
    sampling: Sampling
    chosen_by: Mapping[str, str]
    output: OutputFlags
    prompt: str | None = None
    images: tuple[str, ...] = ()
    videos: tuple[str, ...] = ()
    system: str | None = None
    interactive: bool = False
    stdin: StdinForm = StdinForm.WHOLE
    asks_stdin: bool = False
    attach: Attach = "auto"
    log: str | None = None
    resumed: SavedChat | None = None


def run_task(
    flags: GlobalFlags, ask: AskFlags, output: OutputFlags, request: RunRequest, *, asks_stdin: bool
) -> RunTask:
    """The task that flags describe; UsageError if they contradict each other."""
    prompt = _prompt(ask.prompt or ())
    for flag, given_media in (("--image", ask.image), ("--video", ask.video)):
        if given_media:
            _check_media(flag, prompt, request)
    if flags.log == "":
        raise UsageError("--log is empty", hint="give a file name")
    resumed = _resumed(flags)
    given = given_sampling(ask) | ({} if flags.seed is None else {"seed": flags.seed})
    chosen_by = dict.fromkeys(SETTINGS, SAVED) if resumed else {}
    system = None if ask.system is None else valid_text(ask.system)
    return RunTask(
        request=request,
        sampling=replace(resumed.sampling if resumed else Sampling(), **given),
        chosen_by=chosen_by | dict.fromkeys(given, "flag"),
        output=output,
        prompt=prompt,
        images=tuple(ask.image or ()),
        videos=tuple(ask.video or ()),
        system=resumed.system if resumed and system is None else system,
        interactive=flags.interactive_mode or flags.resume,
        stdin=_stdin_form(flags, ask),
        asks_stdin=asks_stdin,
        attach=ask.attach or "auto",
        log=flags.log,
        resumed=resumed,
    )


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
    if ask.jsonl and (ask.prompt or ask.image or ask.video):
        raise UsageError("--jsonl has its prompts in the lines", hint="leave out the prompt")
    if ask.jsonl:
        return StdinForm.JSON_LINES
    return StdinForm.LINES if ask.each_line else StdinForm.WHOLE


def _check_media(flag: str, prompt: str | None, request: RunRequest) -> None:
    if prompt is None:
        raise UsageError(f"{flag} needs a prompt", hint="add --prompt TEXT")
    if request.vision is None:
        raise UsageError(
            f"{flag} needs a vision model", hint="use vision-plain, or gguf with --mmproj FILE"
        )


def _resumed(flags: GlobalFlags) -> SavedChat | None:
    """The last chat, if `--continue` is given."""
    if not flags.resume:
        return None
    from mrs_cli.chat.last_chat import last_chat

    return last_chat()
