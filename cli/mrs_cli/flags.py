"""Every flag, declared once. A group of flags is a dataclass; commands say which groups they take.

A field's default means "not given": the value that holds then is named in `show_default`. Groups
are never compared or printed: leaving the code for that out saves start-up time.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Annotated, Literal, TypeVar

from typer import Argument, Option

from mrs.request import DEFAULT_SEQ_TOKENS
from mrs_cli import completing
from mrs_cli.paged_flags import PagedFlags
from mrs_cli.settings import SETTINGS

DataType = Literal["auto", "bf16", "f16", "f32"]
PlacementStrategy = Literal["fill", "spread", "fastest"]
SolveGoal = Literal["max-seq-len", "max-batch-size", "isq"]
Group = TypeVar("Group")

_model = partial(Option, rich_help_panel="Model")
_devices = partial(Option, rich_help_panel="Devices and precision")
_asking = partial(Option, rich_help_panel="Asking")
_sampling = partial(Option, rich_help_panel="Sampling")
_planning = partial(Option, rich_help_panel="Planning")
_timing = partial(Option, rich_help_panel="Timing")
_program = partial(Option, rich_help_panel="Program")
_source = partial(Argument, rich_help_panel="Asking")


@dataclass(frozen=True, eq=False, repr=False)
class ChatFlags:
    """Flags that stand before the selector and are about what is said."""

    interactive_mode: Annotated[
        bool, _asking("-i", "--interactive-mode", help="Chat in the terminal.")
    ] = False
    resume: Annotated[
        bool,
        _asking(
            "--continue", help="Chat on from where the last chat on this machine was left (-i)."
        ),
    ] = False
    thinking: Annotated[
        str | None,
        _asking(
            "--thinking",
            metavar="[true|false]",
            autocompletion=completing.truths,
            help="Thinking mode, for models whose template knows it.",
            show_default="the template decides",
        ),
    ] = None


@dataclass(frozen=True, eq=False, repr=False)
class PlacementFlags:
    """What is loaded and where: flags of every command that loads or plans a model."""

    num_device_layers: Annotated[
        str | None,
        _devices(
            "-n",
            "--num-device-layers",
            metavar="LAYERS",
            help='Layers on accelerators, the rest on the CPU: "16" for the first accelerator, '
            '"0:16;1:16" for several.',
            show_default="automatic",
        ),
    ] = None
    isq: Annotated[
        str | None,
        _devices(
            "--isq",
            metavar="LEVEL",
            autocompletion=completing.isq_levels,
            help="Quantize while loading: q4_0 q4_1 q5_0 q5_1 q8_0 q2k q3k q4k q5k q6k, "
            "or bits 2 3 4 5 6 8.",
        ),
    ] = None
    cpu: Annotated[bool, _devices("--cpu", help="Use no accelerator.")] = False
    strategy: Annotated[
        PlacementStrategy | None,
        _devices(
            "--strategy",
            metavar="fill|spread|fastest",
            case_sensitive=False,
            help="Fill one device after another, spread layers evenly, or place them for speed.",
            show_default="fill",
        ),
    ] = None
    no_cpu_spill: Annotated[
        bool,
        _devices(
            "--no-cpu-spill",
            help="Fail where the accelerators cannot hold every layer, instead of using the CPU.",
        ),
    ] = False
    no_calibration: Annotated[
        bool,
        _devices("--no-calibration", help="Plan without what was measured on this machine."),
    ] = False
    plan_file: Annotated[
        str | None,
        _devices(
            "--plan",
            metavar="FILE",
            help="Run exactly the plan that mrs plan --json saved; flags that say other than the plan are "
            "named and ignored.",
        ),
    ] = None
    no_kv_cache: Annotated[
        bool, _devices("--no-kv-cache", help="Recompute everything at each step.")
    ] = False
    token_source: Annotated[
        str | None,
        _model(
            "--token-source",
            metavar="SOURCE",
            help="Where the hub token comes from: literal:VALUE, env:NAME, path:FILE, cache, none.",
            show_default="cache",
        ),
    ] = None


@dataclass(frozen=True, eq=False, repr=False)
class PlanGlobalFlags(PagedFlags, PlacementFlags):
    """The global flags that a plan heeds."""

    prefix_cache_n: Annotated[
        int | None,
        _devices(
            "--prefix-cache-n",
            metavar="N",
            parser=SETTINGS["prefix_cache_n"].from_flag,
            help="Past sequences that stay on their devices, so that what begins like one need "
            "not be computed again; 0 remembers none.",
            show_default="16",
        ),
    ] = None


@dataclass(frozen=True, eq=False, repr=False)
class GlobalFlags(PlanGlobalFlags, ChatFlags):
    """Flags that stand before the selector."""

    max_seqs: Annotated[
        int | None,
        _devices(
            "--max-seqs",
            metavar="N",
            parser=SETTINGS["max_seqs"].from_flag,
            help="Most sequences running at once.",
            show_default="16",
        ),
    ] = None
    prefix_cache_dir: Annotated[
        str | None,
        _devices(
            "--prefix-cache-dir",
            metavar="FOLDER",
            help="Keep past sequences in FOLDER, too, for later runs of the same model.",
        ),
    ] = None
    prefix_cache_dir_size: Annotated[
        str | None,
        _devices(
            "--prefix-cache-dir-size",
            metavar="SIZE",
            help="Most that they take there, such as 512MiB; those used longest ago go first.",
            show_default="4GiB",
        ),
    ] = None
    seed: Annotated[
        int | None,
        _sampling(
            "-s",
            "--seed",
            metavar="N",
            parser=SETTINGS["seed"].from_flag,
            help="Sampling seed.",
            show_default="random",
        ),
    ] = None
    chat_template: Annotated[
        str | None,
        _model(
            "-c",
            "--chat-template",
            metavar="FILE",
            help="Chat template: .jinja, or .json in the form of tokenizer_config.json.",
            show_default="the model's",
        ),
    ] = None
    jinja_explicit: Annotated[
        str | None,
        _model(
            "-j",
            "--jinja-explicit",
            metavar="FILE",
            help="A .jinja file that beats every other template.",
        ),
    ] = None
    log: Annotated[
        str | None,
        _program(
            "-l",
            "--log",
            metavar="FILE",
            help="Append every request and response to FILE as JSON lines.",
        ),
    ] = None


@dataclass(frozen=True, eq=False, repr=False)
class AskFlags:
    """What to ask and how to answer; these stand before or after the selector."""

    prompt: Annotated[
        list[str] | None,
        _asking(
            "-P",
            "--prompt",
            metavar="TEXT",
            help="Answer TEXT and exit; with -i, ask it first and stay.",
        ),
    ] = None
    image: Annotated[
        list[str] | None,
        _asking(
            "--image",
            metavar="PATH",
            help="Show this picture with --prompt, from a file or an address; may be given several "
            "times (vision-plain).",
        ),
    ] = None
    system: Annotated[str | None, _asking("--system", metavar="TEXT", help="System prompt.")] = None
    max_tokens: Annotated[
        int | None,
        _sampling(
            "--max-tokens",
            metavar="N",
            parser=SETTINGS["max_tokens"].from_flag,
            help="Longest reply.",
            show_default="until the model stops",
        ),
    ] = None
    temperature: Annotated[
        float | None,
        _sampling(
            "--temperature",
            metavar="X",
            parser=SETTINGS["temperature"].from_flag,
            help="0 to 2; 0 takes the likeliest token.",
            show_default="0.1",
        ),
    ] = None
    top_k: Annotated[
        int | None,
        _sampling(
            "--top-k",
            metavar="N",
            parser=SETTINGS["top_k"].from_flag,
            help="Choose among the N likeliest; 0 is off.",
            show_default="32",
        ),
    ] = None
    top_p: Annotated[
        float | None,
        _sampling(
            "--top-p",
            metavar="X",
            parser=SETTINGS["top_p"].from_flag,
            help="Choose among the likeliest that together reach probability X; 1 is off.",
            show_default="0.1",
        ),
    ] = None
    min_p: Annotated[
        float | None,
        _sampling(
            "--min-p",
            metavar="X",
            parser=SETTINGS["min_p"].from_flag,
            help="Drop tokens less than X times as likely as the likeliest; 0 is off.",
            show_default="0.05",
        ),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        _sampling(
            "--repetition-penalty",
            metavar="X",
            parser=SETTINGS["repetition_penalty"].from_flag,
            help="Divide the logits of tokens already seen; 1 is off.",
            show_default="1",
        ),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        _sampling(
            "--frequency-penalty",
            metavar="X",
            parser=SETTINGS["frequency_penalty"].from_flag,
            help="-2 to 2, for each time a token was said.",
            show_default="0.1",
        ),
    ] = None
    presence_penalty: Annotated[
        float | None,
        _sampling(
            "--presence-penalty",
            metavar="X",
            parser=SETTINGS["presence_penalty"].from_flag,
            help="-2 to 2, for tokens already said.",
            show_default="0.1",
        ),
    ] = None
    dry_multiplier: Annotated[
        float | None,
        _sampling(
            "--dry-multiplier",
            metavar="X",
            parser=SETTINGS["dry_multiplier"].from_flag,
            help="Punish going on with a repetition, by X where it begins to count; 0 is off.",
            show_default="0",
        ),
    ] = None
    dry_base: Annotated[
        float | None,
        _sampling(
            "--dry-base",
            metavar="X",
            parser=SETTINGS["dry_base"].from_flag,
            help="X times harder for each further token of the repetition.",
            show_default="1.75",
        ),
    ] = None
    dry_allowed_length: Annotated[
        int | None,
        _sampling(
            "--dry-allowed-length",
            metavar="N",
            parser=SETTINGS["dry_allowed_length"].from_flag,
            help="Repetitions count from N tokens up.",
            show_default="2",
        ),
    ] = None
    dry_sequence_breakers: Annotated[
        list[str] | None,
        _sampling(
            "--dry-sequence-breaker",
            metavar="TEXT",
            help="No repetition goes on across TEXT; may be given several times.",
            show_default='newline : " *',
        ),
    ] = None
    logit_bias: Annotated[
        list[str] | None,
        _sampling(
            "--logit-bias",
            metavar="TOKEN=X",
            help="Add X to the logit of a token id; may be given several times.",
        ),
    ] = None
    stop: Annotated[
        list[str] | None,
        _sampling(
            "--stop", metavar="TEXT", help="End the reply before TEXT; may be given several times."
        ),
    ] = None


@dataclass(frozen=True, eq=False, repr=False)
class OutputFlags:
    """How much is said and in which form; these stand before or after the selector."""

    json: Annotated[
        bool, _program("--json", help="Print JSON: an object a reply, plan or table.")
    ] = False
    quiet: Annotated[
        bool, _program("-q", "--quiet", help="Say nothing but replies and errors.")
    ] = False
    verbose: Annotated[
        int,
        _program(
            "-v",
            "--verbose",
            count=True,
            help="Say more on standard error; -vv shows tracebacks.",
            show_default=False,
        ),
    ] = 0


@dataclass(frozen=True, eq=False, repr=False)
class PlanningFlags:
    """Selector flags that hint the automatic mapping; they limit nothing at run time."""

    dtype: Annotated[
        DataType | None,
        _devices(
            "-d",
            "--dtype",
            metavar="auto|bf16|f16|f32",
            case_sensitive=False,
            help="Type of weights that are not quantized.",
            show_default="auto",
        ),
    ] = None
    max_seq_len: Annotated[
        int | None,
        _devices(
            "--max-seq-len",
            metavar="TOKENS",
            parser=SETTINGS["max_seq_len"].from_flag,
            help="Plan for sequences of this length (a hint, no limit).",
            show_default=str(DEFAULT_SEQ_TOKENS),
        ),
    ] = None
    max_batch_size: Annotated[
        int | None,
        _devices(
            "--max-batch-size",
            metavar="N",
            parser=SETTINGS["max_batch_size"].from_flag,
            help="Plan for this many sequences in a batch (a hint, no limit).",
            show_default="1",
        ),
    ] = None


@dataclass(frozen=True, eq=False, repr=False)
class PictureFlags:
    """Pictures to plan for; these limit nothing at run time but the edge."""

    max_edge: Annotated[
        int | None,
        _devices(
            "-e",
            "--max-edge",
            metavar="PIXELS",
            parser=SETTINGS["max_edge"].from_flag,
            help="Make pictures with a longer edge smaller, for models that take any size.",
            show_default="as they are",
        ),
    ] = None
    max_num_images: Annotated[
        int | None,
        _devices(
            "--max-num-images",
            metavar="N",
            parser=SETTINGS["max_num_images"].from_flag,
            help="Plan for this many images in a sequence (a hint, no limit).",
            show_default="1",
        ),
    ] = None
    max_image_length: Annotated[
        int | None,
        _devices(
            "--max-image-length",
            metavar="PIXELS",
            parser=SETTINGS["max_image_length"].from_flag,
            help="Plan for images of this edge length (a hint, no limit).",
            show_default="1024",
        ),
    ] = None


@dataclass(frozen=True, eq=False, repr=False)
class PlainFlags:
    """Which safetensors model."""

    model_id: Annotated[
        str,
        _model(
            "-m",
            "--model-id",
            metavar="ID",
            autocompletion=completing.plain_models,
            help="Hub id or its web address, local folder, or demo.",
        ),
    ]
    arch: Annotated[
        str | None,
        _model(
            "-a",
            "--arch",
            metavar="NAME",
            autocompletion=completing.architectures,
            help="Architecture.",
            show_default="as config.json says",
        ),
    ] = None
    tokenizer_json: Annotated[
        str | None,
        _model(
            "-t",
            "--tokenizer-json",
            metavar="FILE",
            help="A tokenizer.json in place of the model's.",
        ),
    ] = None
    hf_cache_path: Annotated[
        str | None,
        _model(
            "--hf-cache-path",
            metavar="FOLDER",
            help="Hub cache.",
            show_default="as HF_HUB_CACHE and HF_HOME say",
        ),
    ] = None


@dataclass(frozen=True, eq=False, repr=False)
class VisionFlags(PictureFlags, PlainFlags):
    """Which safetensors model that sees."""


@dataclass(frozen=True, eq=False, repr=False)
class GgufModelFlags:
    """Which GGUF model."""

    quantized_model_id: Annotated[
        str,
        _model(
            "-m",
            "--quantized-model-id",
            metavar="ID",
            autocompletion=completing.gguf_models,
            help="Hub id or its web address, local folder, .gguf file, or demo.",
        ),
    ]
    quantized_filename: Annotated[
        list[str] | None,
        _model(
            "-f",
            "--quantized-filename",
            metavar="FILE",
            help="File in it; of several shards the first is enough.",
            show_default="the only model there",
        ),
    ] = None
    tok_model_id: Annotated[
        str | None,
        _model(
            "-t",
            "--tok-model-id",
            metavar="ID",
            help="Model whose tokenizer and chat template to use.",
            show_default="those in the file",
        ),
    ] = None


@dataclass(frozen=True, eq=False, repr=False)
class GgufFlags(PictureFlags, GgufModelFlags):
    """Which GGUF model, and the file by which it sees."""

    mmproj: Annotated[
        str | None,
        _model(
            "--mmproj",
            metavar="FILE",
            help="File beside the model's that sees for it.",
            show_default="none: text alone",
        ),
    ] = None


@dataclass(frozen=True, eq=False, repr=False)
class PlanFlags:
    """Flags of `mrs plan` itself."""

    dry_run: Annotated[
        bool,
        _planning("--dry-run", help="Read headers only: download, load and measure nothing."),
    ] = False
    device: Annotated[
        list[str] | None,
        _planning(
            "--device",
            metavar="DEVICE",
            help="Plan for a device that need not be there: by its memory, such as cuda:0=24GiB, "
            "cuda:1=16GiB,bandwidth=448GB/s or cpu=64GiB, or by its name, such as "
            '"cuda:0=RTX 4090" or "metal:0=M4 Max 64GB"; may be given several times.',
        ),
    ] = None
    solve: Annotated[
        SolveGoal | None,
        _planning(
            "--solve",
            metavar="max-seq-len|max-batch-size|isq",
            help="Find the largest length or batch that fits, or the finest quantization that fits "
            "without layers on the CPU (if none does, the fastest).",
        ),
    ] = None
    model_id: Annotated[
        str | None,
        _planning(
            "-m",
            "--model-id",
            metavar="ID",
            autocompletion=completing.all_models,
            help="Model, when no selector is named: hub id, local folder, .gguf file, or demo.",
            show_default="demo",
        ),
    ] = None
    filename: Annotated[
        str | None, _planning("-f", "--filename", metavar="FILE", help="GGUF file of that model.")
    ] = None


@dataclass(frozen=True, eq=False, repr=False)
class CacheFlags:
    """Which folders `mrs cache` looks into."""

    hf_cache_path: Annotated[
        str | None,
        _program(
            "--hf-cache-path",
            metavar="FOLDER",
            help="Hub cache.",
            show_default="as HF_HUB_CACHE and HF_HOME say",
        ),
    ] = None
    prefix_cache_dir: Annotated[
        str | None,
        _program(
            "--prefix-cache-dir",
            metavar="FOLDER",
            help="Folder of past sequences.",
            show_default="none",
        ),
    ] = None


@dataclass(frozen=True, eq=False, repr=False)
class BenchFlags:
    """Flags of `mrs bench` itself."""

    prompt_tokens: Annotated[
        int,
        _timing(
            "-p",
            "--prompt-tokens",
            metavar="N",
            min=1,
            help="Length of the prompt.",
            show_default="512",
        ),
    ] = 512
    new_tokens: Annotated[
        int,
        _timing(
            "-n",
            "--new-tokens",
            metavar="N",
            min=2,
            help="Length of the reply.",
            show_default="64",
        ),
    ] = 64
    rounds: Annotated[
        int,
        _timing(
            "-r",
            "--rounds",
            metavar="N",
            min=1,
            help="Rounds, after one to warm up.",
            show_default="3",
        ),
    ] = 3


@dataclass(frozen=True, eq=False, repr=False)
class BenchGlobalFlags(PagedFlags, PlacementFlags):
    """The global flags after `bench`, where `-n` is the length of the reply."""

    num_device_layers: Annotated[
        str | None,
        _devices(
            "--num-device-layers",
            metavar="LAYERS",
            help="Layers on accelerators; -n before bench.",
            show_default="automatic",
        ),
    ] = None


@dataclass(frozen=True, eq=False, repr=False)
class StdinFlags:
    """Where prompts come from."""

    source: Annotated[
        str | None,
        _source(
            metavar="-",
            help="Read prompts from standard input, one a line; a pipe is read without it, too.",
        ),
    ] = None


def merged(outer: Group, inner: object) -> Group:
    """`outer` with every flag that `inner` was given: the word nearest to the command wins.

    Flags that may be given several times add up.
    """
    given = {}
    for each in fields(inner):  # type: ignore[arg-type]
        if (value := getattr(inner, each.name)) != each.default:
            is_list = isinstance(value, list)
            given[each.name] = [*(getattr(outer, each.name) or ()), *value] if is_list else value
    return replace(outer, **given)  # type: ignore[type-var]
