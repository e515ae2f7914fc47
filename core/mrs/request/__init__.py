"""Requests as plain values: which model to load, on which devices, and how to sample."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypedDict, get_args

from mrs.errors import Unsupported, UsageError
from mrs.request.setting_kinds import Biases, Choice, Number, Text, Texts, Tokens, setting
from mrs.topology import Topology

Container = Literal["safetensors", "gguf"]
MediaKind = Literal["image", "video", "audio"]
Dtype = Literal["auto", "bf16", "f16", "f32"]
Strategy = Literal["fill", "spread", "fastest"]
Speculation = Literal["ngram", "off"]
CacheType = Literal["auto", "f16", "bf16", "f32", "f8e4m3", "q8_0", "q4_0"]
CACHE_TYPES: tuple[CacheType, ...] = get_args(CacheType)
QUANTIZED_CACHE_TYPES: tuple[CacheType, ...] = ("q8_0", "q4_0")
#: Significant bits of activations in products on a CPU.
ActivationBits = Literal[8, 16]
ACTIVATION_BITS: tuple[ActivationBits, ...] = get_args(ActivationBits)
GrammarKind = Literal[
    "regex", "json_schema", "lark", "gbnf", "llguidance", "json_object", "tool_calls"
]
#: How long a model thinks before it answers, for chat templates that know it.
Effort = Literal["none", "off", "minimal", "low", "medium", "high", "xhigh"]
#: Efforts that are not to think at all.
NO_EFFORT: tuple[Effort, ...] = ("none", "off")
#: The share of a reply's tokens that a thought may have, if the chat template knows no efforts.
EFFORT_SHARES: dict[Effort, float] = {
    "minimal": 0.1, "low": 0.2, "medium": 0.5, "high": 0.8, "xhigh": 0.95
}  # fmt: skip

#: Most prompt tokens in one forward pass, which bounds the memory for activations.
PREFILL_CHUNK_TOKENS = 512
#: Planned length of a sequence, unless a length is given or the model's context is shorter.
DEFAULT_SEQ_TOKENS = 4096
#: Default tokens per block of the KV cache: as many as native attention processes in one step.
BLOCK_TOKENS = 64
#: Supported block sizes: powers of two, because kernels find a token's block by a bit shift.
BLOCK_SIZES = (8, 16, 32, 64)

_SHARE = Number(0, 1)
#: Bounds of OpenAI's interface.
_PENALTY = Number(-2, 2)
_COUNT = Number(1, 2**31 - 1, whole=True)
_EFFORTS = Choice(get_args(Effort))

#: Marks the position of an image in a message's content (U+FFFC, object replacement character).
IMAGE_MARK = "\ufffc"


class ToolCallMessage(TypedDict):
    """A call of a tool in an earlier reply; `arguments` is JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Media:
    """An image, a video or an audio file that was read: the bytes of its file, and their SHA-256.

    `name` is the path or the address it came by, for people. Those of one `digest` are the same
    to every cache, whatever their names.
    """

    name: str
    content: bytes = field(repr=False, compare=False)
    kind: MediaKind
    digest: bytes = field(repr=False)

    @classmethod
    def of(cls, name: str, content: bytes, kind: MediaKind) -> Media:
        return cls(name, content, kind, hashlib.sha256(content).digest())


class _Optional(TypedDict, total=False):
    images: Sequence[Media]
    reasoning: str
    tool_calls: Sequence[ToolCallMessage]
    tool_call_id: str
    name: str


class Message(_Optional):
    """One message of a conversation; `mrs.text.template_forms` gives it its template's form.

    `images` are images and videos; the field is absent without any.
    `content` has one IMAGE_MARK for each image, in the same order, and no others. A message of the
    assistant may have `reasoning`, its thought before the content, and calls of tools; then its
    content may be None. One of the role `tool` is the result of the call `tool_call_id` of the tool
    `name`; in other messages `name` tells people of the same role apart.
    """

    role: str
    content: str | None


def text_of(message: Message) -> str:
    """The content of a message; empty if it has none."""
    return message["content"] or ""


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from.

    `model_id` is a hub id, a local folder, a `.gguf` file, or `demo`. `filenames` are names of GGUF
    files, `mmproj` is that of the file with the vision tower. `token_source` is the value of
    `--token-source` (`cache`, `env:NAME`, …). `uqff` are the names of UQFF files, which have the
    quantized weights of a model in safetensors format. With `prefers_hub` a name that can be a hub
    id is one, even if a folder here has that name.
    """

    model_id: str
    container: Container
    filenames: tuple[str, ...] = ()
    revision: str = "main"
    token_source: str = "cache"
    cache_path: str | None = None
    tokenizer_json: str | None = None
    tokenizer_model_id: str | None = None
    mmproj: str | None = None
    uqff: tuple[str, ...] = ()
    prefers_hub: bool = False


@dataclass(frozen=True)
class AdapterRequest:
    """A LoRA adapter: `model_id` is a hub id or a local folder.

    A merged one is added to the weights while they are loaded. Others stay apart, and requests
    choose one by its `name`.
    """

    model_id: str
    name: str = ""
    is_merged: bool = True
    revision: str = "main"


@dataclass(frozen=True)
class Grammar:
    """What a reply must match: the `text` of a grammar of some kind; GBNF is that of llama.cpp.

    `json_object` is any JSON object and needs no text; `llguidance` is that library's JSON form, as
    is `tool_calls`, which the program makes of tools.
    """

    kind: GrammarKind
    text: str = ""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen, and where a reply ends.

    The defaults are the same for the chat, prompts of the command line, HTTP and Python, and hold
    where neither the request nor the model's files say anything. They leave the distribution of the
    model as it is, apart from a temperature of 0.7, which is usual for chats: at 0, small models
    repeat themselves, and what people ask to have written is always the same. No penalty and no
    filter acts unasked: each would change replies beside those of other programs.

    `logprobs` n returns the log probability of each token and of the n most likely ones; None is
    off. `prompt_logprobs` n does the same for the tokens of the prompt. The reply, without its
    thought, matches `grammar`. With `ignore_eos` no token of the model ends it; its text has
    control tokens with `shows_control`, and with `keeps_stop` the stop text or token that ended it.
    Requests that differ in `variant` get different random numbers from one seed. The `adapter` is
    one that requests choose.

    Filters look at probabilities at the temperature, but top-n-sigma at logits; at a temperature of
    0 none matters. They act in this order: top-n-sigma, top-k, typical-p, min-p and top-p, XTC.

    DRY: the logit of a token that would extend a repetition of n >= `dry_allowed_length` tokens is
    lowered by `dry_multiplier * dry_base ** (n - dry_allowed_length)`; the last token of each of
    `dry_sequence_breakers` ends a repetition.

    A thought that has `reasoning_budget` tokens is ended, with `reasoning_budget_message` before
    its end; None is the model's budget. `reasoning_effort` None is the model's; for a template
    without levels it is a budget, of `EFFORT_SHARES`.
    """

    temperature: float = setting(
        0.7,
        Number(0, 100),
        "Randomness: 1 is the model's own, 0 always takes the most likely token (greedy).",
        gguf_key="general.sampling.temp",
        config_key="temperature",
    )
    top_k: int = setting(
        0,
        Number(-1, 2**31 - 1, whole=True),
        "Sample from the N most likely tokens; 0 and -1 are off.",
        off=0,
        gguf_key="general.sampling.top_k",
        config_key="top_k",
    )
    top_p: float = setting(
        1.0,
        _SHARE,
        "Sample from the most likely tokens whose probabilities sum up to X; 1 is off.",
        off=1.0,
        gguf_key="general.sampling.top_p",
        config_key="top_p",
    )
    min_p: float = setting(
        0.0,
        _SHARE,
        "Drop tokens less likely than X times the most likely one; 0 is off.",
        off=0.0,
        gguf_key="general.sampling.min_p",
        config_key="min_p",
    )
    repetition_penalty: float = setting(
        1.0,
        Number(0.001, 1000),
        "Divide the logits of tokens that occurred before by X; 1 is off.",
        off=1.0,
        aliases=("repeat_penalty",),
        gguf_key="general.sampling.penalty_repeat",
        config_key="repetition_penalty",
    )
    frequency_penalty: float = setting(
        0.0,
        _PENALTY,
        "Subtract X from a token's logit each time the reply uses it, -2 to 2; 0 is off.",
        off=0.0,
    )
    presence_penalty: float = setting(
        0.0,
        _PENALTY,
        "Subtract X from the logits of tokens that the reply has used, -2 to 2; 0 is off.",
        off=0.0,
    )
    max_tokens: int | None = setting(
        None,
        Number(0, 2**31 - 1, whole=True),
        "Maximum tokens of a reply; 0 reads the prompt alone.",
        unset="until the model stops",
        aliases=("n_predict", "max_new_tokens"),
    )
    stop: tuple[str, ...] = setting((), Texts(), "End the reply before TEXT.", unset="none")
    typical_p: float = setting(
        1.0,
        _SHARE,
        "Sample from the tokens whose surprise is nearest to the expected one, and whose "
        "probabilities sum up to X; 1 is off.",
        off=1.0,
        config_key="typical_p",
    )
    top_n_sigma: float = setting(
        0.0,
        Number(-1, 1000),
        "Drop tokens whose logit is more than X standard deviations below the largest; 0 and below "
        "are off.",
        off=0.0,
    )
    xtc_probability: float = setting(
        0.0,
        _SHARE,
        "With probability X, drop all tokens above the XTC threshold but the least likely of them; "
        "0 is off.",
        off=0.0,
        gguf_key="general.sampling.xtc_probability",
    )
    xtc_threshold: float = setting(
        0.1,
        _SHARE,
        "The probability above which XTC drops tokens; above 0.5 it drops none.",
        gguf_key="general.sampling.xtc_threshold",
    )
    min_tokens: int = setting(
        0,
        Number(0, 2**31 - 1, whole=True),
        "Minimum tokens of a reply: no token and no text ends it earlier.",
        off=0,
    )
    stop_token_ids: tuple[int, ...] = setting(
        (),
        Tokens(),
        "End the reply before the token with this id.",
        unset="none",
        flag="stop-token-id",
    )
    dry_multiplier: float = setting(
        0.0,
        Number(0, 1e6),
        "Strength of the DRY penalty for repeated phrases; 0 is off.",
        off=0.0,
    )
    dry_base: float = setting(
        1.75, Number(1, 1e6), "Each further token of a phrase multiplies the penalty by X."
    )
    dry_allowed_length: int = setting(2, _COUNT, "Phrases of fewer than N tokens have no penalty.")
    dry_sequence_breakers: tuple[str, ...] = setting(
        ("\n", ":", '"', "*"),
        Texts(),
        "TEXT ends a phrase.",
        unset='newline : " *',
        flag="dry-sequence-breaker",
    )
    logit_bias: tuple[tuple[int, float], ...] = setting(
        (), Biases(), "Add X to the logit of the token with this id.", off=(), unset="none"
    )
    seed: int | None = setting(
        None,
        Number(-(2**63), 2**63 - 1, whole=True),
        "Sampling seed: the same prompt gets the same reply.",
        unset="random",
    )
    reasoning_effort: Effort | None = setting(  # noqa: RUF009 - a field, like the others
        None,
        _EFFORTS,
        "How long to think; off is not at all. Without levels in the chat template, a thought may "
        "have 10 % (minimal), 20, 50, 80 or 95 % of a reply's tokens.",
        unset="the template decides",
    )
    reasoning_budget: int | None = setting(
        None,
        Number(-1, 2**31 - 1, whole=True),
        "End a thought after N tokens; 0 is no thought, -1 no limit.",
        unset="no limit",
    )
    reasoning_budget_message: str | None = setting(
        None,
        Text(),
        "Put TEXT before the end of a thought that the budget ends.",
        unset="nothing",
    )
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    variant: int = 0
    ignore_eos: bool = False
    shows_control: bool = False
    keeps_stop: bool = False
    grammar: Grammar | None = None
    adapter: str | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise UsageError(
                f"a reply has at least {self.min_tokens} and at most {self.max_tokens} tokens",
                hint="lower min_tokens, or raise max_tokens",
            )


#: What `max_audio_seconds` may be: an hour takes more memory than most models.
AUDIO_SECONDS = Number(1, 3600, whole=True)


@dataclass(frozen=True)
class VisionRequest:
    """The settings of a model that sees or hears.

    Images with an edge longer than `max_edge` pixels are scaled down, if the model accepts images
    of any size. The plan reserves memory for `max_num_images` images of `max_image_length` x
    `max_image_length` pixels; these are hints, not limits. Of a model that hears it is memory for
    `max_num_images` audio files of `max_audio_seconds`, and longer ones are refused.
    """

    max_edge: int | None = None
    max_num_images: int = 1
    max_image_length: int = 1024
    max_audio_seconds: int = 120

    def __post_init__(self) -> None:
        if not AUDIO_SECONDS.accepts(self.max_audio_seconds):
            raise UsageError(f"max_audio_seconds is not {AUDIO_SECONDS.wording}")


@dataclass(frozen=True)
class PagedRequest:
    """The blocks of the KV cache, and the size of their pool.

    pool             whether the pool has a fixed size; None: it has if a size is given or if the
                     first device is a CUDA GPU that holds the whole model. Without it, blocks are
                     allocated as needed
    context_tokens   size of the pool in tokens
    memory_fraction  or: share of the first device's memory for weights, activations and the pool
    memory_mib       or: size of the pool in MiB; of several sizes the first one counts
    block_tokens     tokens in a block; 64 if keys and values are quantized
    cache_type       type of keys and values; `auto` is f16 for a quantized model on a CPU, there
                     with activations of 16 bits f32 for any, else that of unquantized weights;
                     f8e4m3 is for NVIDIA GPUs, q8_0 and q4_0 for CPUs
    key_cache_type   or: that of keys alone, and
    value_cache_type that of values; both are quantized or of one type

    Raises UsageError and Unsupported.
    """

    pool: bool | None = None
    context_tokens: int | None = None
    memory_fraction: float | None = None
    memory_mib: int | None = None
    block_tokens: int = BLOCK_TOKENS
    cache_type: CacheType = "auto"
    key_cache_type: CacheType | None = None
    value_cache_type: CacheType | None = None

    def __post_init__(self) -> None:
        if self.block_tokens not in BLOCK_SIZES:
            sizes = ", ".join(map(str, BLOCK_SIZES[:-1]))
            raise UsageError(
                f"blocks of {self.block_tokens} tokens are not supported",
                where="--pa-blk-size",
                hint=f"give {sizes} or {BLOCK_SIZES[-1]}",
            )
        types = {
            "--pa-cache-type": self.cache_type,
            "--cache-type-k": self.key_cache_type,
            "--cache-type-v": self.value_cache_type,
        }
        for flag, wanted in types.items():
            if wanted is not None and wanted not in CACHE_TYPES:
                raise Unsupported(
                    f"a KV cache of type {wanted} is not supported",
                    where=flag,
                    hint=f"give {', '.join(CACHE_TYPES[:-1])} or {CACHE_TYPES[-1]}",
                )
            if wanted in QUANTIZED_CACHE_TYPES and self.block_tokens != BLOCK_TOKENS:
                raise Unsupported(
                    f"a KV cache of type {wanted} has no blocks of {self.block_tokens} tokens",
                    where="--pa-blk-size",
                    hint=f"leave it out: its blocks have {BLOCK_TOKENS} tokens",
                )

    @property
    def cache_types(self) -> tuple[CacheType, CacheType]:
        """The types of keys and of values."""
        return self.key_cache_type or self.cache_type, self.value_cache_type or self.cache_type

    @property
    def sizes(self) -> list[str]:
        """The flags of the sizes that are given; the first one counts."""
        flags = {
            "--pa-ctxt-len": self.context_tokens,
            "--pa-gpu-mem-usage": self.memory_fraction,
            "--pa-gpu-mem": self.memory_mib,
        }
        return [flag for flag, value in flags.items() if value is not None]


@dataclass(frozen=True)
class ClusterRequest:
    """The processes over which the layers are split, in addition to this one.

    workers        number of workers that this process starts on this machine
    wait_for       or: number of workers that join from other machines
    listen         the address where they join, HOST:PORT
    wait_limit_s   how long they may take; None is any time
    group_size     number of consecutive processes that have the same layers and compute a shard of
                   each (tensor parallelism); groups have different layers. 0 lets the coordinator
                   choose, when it knows the machines
    rejoin_limit_s how long to wait for another worker when one is lost, after which replies go on;
                   0 is not at all
    sequences_share
                   plan the KV cache for as many of `max_seqs` as need this fraction of the memory
                   that the first leaves free; 0 is for `max_batch_size`
    """

    workers: int = 0
    wait_for: int = 0
    listen: str | None = None
    wait_limit_s: float | None = None
    group_size: int = 1
    rejoin_limit_s: float = 0.0
    sequences_share: float = 0.0

    @property
    def is_one_stage(self) -> bool:
        """Whether all processes share all layers."""
        return self.workers + self.wait_for + 1 == self.group_size


def require_whole_stages(ranks: int, group_size: int) -> None:
    """Raises UsageError unless `ranks` processes are stages of `group_size` each, 0 for any."""
    if group_size and ranks % group_size:
        raise UsageError(
            f"{ranks} processes, this one included, are not groups of {group_size}",
            where="--tensor-parallel-size",
            hint=f"choose a multiple of {group_size} processes",
        )


@dataclass(frozen=True)
class ServerLoad:
    """What a server that is planned for takes at most: bytes of a body, connections."""

    max_body_bytes: int = 50 * 2**20
    max_connections: int = 1024


@dataclass(frozen=True)
class RunRequest:
    """All settings of planning and loading a model.

    layer_map, isq         as the user wrote them, so that errors can quote them
    activations            significant bits of activations in products on a CPU: with 16, what 8
                           bits leave of them is multiplied, too. Other devices have the `dtype`
    imatrix                importance matrix: how much the error of each column counts for `isq`
    calibration_file       text by which that is measured instead
    moqe                   `isq` quantizes only the experts of mixtures of experts
    topology               quantization and devices of single layers, and of experts
    max_seq_len            planned length of a sequence, a hint and not a limit; by default
                           `DEFAULT_SEQ_TOKENS`, or the model's context if that is shorter
    max_batch_size         planned number of sequences, a hint and not a limit
    plan_file              a saved plan, which is followed exactly
    disk_layers            how many layers of the CPU stay on disk and are read for each token;
                           with `auto` as many as do not fit in memory
    cpu_spill              layers that do not fit into the accelerators may go to the CPU
    calibration            correct the plan by measurements of earlier runs on this machine
    vision                 set for vision models
    prefix_cache_n         number of past sequences that the prefix cache keeps on accelerators; on
                           a CPU, how many of the planned length its memory holds, and a longest one
    prefix_cache_size      the most memory of the prefix cache on all devices together, such as
                           `2GiB`; None is half of what is free
    prefix_cache_dir       folder that stores the prefix cache between runs, if any
    prefix_cache_dir_size  size limit of that folder
    adapters               LoRA adapters; merged ones are added in this order
    cluster                set if other processes compute some of the layers
    reasoning_effort       how long the model thinks
    reasoning_budget       the most tokens of a thought, unless requests say otherwise
    reasoning_budget_message
                           text that is put before the end of a thought of that length
    target_gap_s           the time between two tokens of a reply that the prompts of others should
                           not exceed; None lets a prompt take steps of any length
    speculate              where drafts of the next tokens come from; replies are the same without
    draft_model            the model that drafts tokens instead: hub id, folder, file or `demo`
    mtp                    whether the model's own draft head drafts tokens, if it has one; by
                           default where the plan expects that it saves time
    reserved_bytes         bytes of each device, by its label, that its other models need;
                           negative if some will be freed
    max_models             models that may be loaded at once: their prefix caches share what is free
    server                 set if the model is for a server, whose requests need memory, too
    write_uqff             path where the weights are written as UQFF before they are loaded
    exact                  decode all weights to float32; with `dtype` f32 and such a KV cache, the
                           model is computed as its weights say
    """

    source: ModelSource
    arch: str | None = None
    dtype: Dtype = "auto"
    activations: ActivationBits = 8
    isq: str | None = None
    imatrix: str | None = None
    calibration_file: str | None = None
    moqe: bool = False
    layer_map: str | None = None
    topology: Topology | None = None
    cpu: bool = False
    seed: int | None = None
    kv_cache: bool = True
    prefix_cache_n: int = 16
    prefix_cache_size: str | None = None
    prefix_cache_dir: str | None = None
    prefix_cache_dir_size: str = "4GiB"
    max_seqs: int = 16
    max_seq_len: int | None = None
    max_batch_size: int = 1
    chat_template: str | None = None
    jinja_explicit: str | None = None
    thinking: bool | None = None
    reasoning_effort: Effort | None = None
    reasoning_budget: int | None = None
    reasoning_budget_message: str = ""
    devices: tuple[str, ...] = ()
    speculate: Speculation = "ngram"
    draft_model: str | None = None
    mtp: bool | None = None
    strategy: Strategy = "fill"
    disk_layers: int | Literal["auto"] | None = None
    cpu_spill: bool = True
    calibration: bool = True
    plan_file: str | None = None
    vision: VisionRequest | None = None
    paged: PagedRequest = PagedRequest()
    target_gap_s: float | None = None
    reserved_bytes: tuple[tuple[str, int], ...] = ()
    max_models: int = 1
    server: ServerLoad | None = None
    adapters: tuple[AdapterRequest, ...] = ()
    cluster: ClusterRequest | None = None
    write_uqff: str | None = None
    exact: bool = False

    @property
    def importance_file(self) -> str | None:
        """The file by which the quantization weighs columns."""
        return self.imatrix or self.calibration_file
