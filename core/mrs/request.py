"""Requests as plain values: which model to load, on which devices, and how to sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

from mrs.errors import Unsupported, UsageError
from mrs.sizes.blocks import BLOCK_SIZES, BLOCK_TOKENS
from mrs.topology import Topology

Container = Literal["safetensors", "gguf"]
Dtype = Literal["auto", "bf16", "f16", "f32"]
Strategy = Literal["fill", "spread", "fastest"]
Speculation = Literal["ngram", "off"]
CacheType = Literal["auto", "f16", "bf16", "f32", "f8e4m3"]
CACHE_TYPES: tuple[CacheType, ...] = get_args(CacheType)
GrammarKind = Literal["regex", "json_schema", "lark", "llguidance", "json_object", "tool_calls"]
#: How long a model thinks before it answers, for chat templates that know it.
Effort = Literal["none", "off", "minimal", "low", "medium", "high", "xhigh"]
#: What `mrs plan --solve` looks for.
SolveGoal = Literal["max-seq-len", "max-batch-size", "isq"]

#: Most prompt tokens in one forward pass, which bounds the memory for activations.
PREFILL_CHUNK_TOKENS = 512
#: Planned length of a sequence, unless a length is given or the model's context is shorter.
DEFAULT_SEQ_TOKENS = 4096


#: Marks the position of an image in a message's content (U+FFFC, object replacement character).
IMAGE_MARK = "\ufffc"


class ToolCallMessage(TypedDict):
    """A call of a tool in an earlier reply; `arguments` is JSON."""

    id: str
    name: str
    arguments: str


class _Optional(TypedDict, total=False):
    images: Sequence[str]
    tool_calls: Sequence[ToolCallMessage]
    tool_call_id: str
    name: str


class Message(_Optional):
    """One message of a conversation, as chat templates get it.

    `images` are paths, file://, http(s):// or data: URLs; the field is absent without images.
    `content` has one IMAGE_MARK for each image, in the same order, and no others. A message of the
    assistant may have calls of tools, and one of the role `tool` is the result of the call
    `tool_call_id` of the tool `name`.
    """

    role: str
    content: str


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from.

    `model_id` is a hub id, a local folder, a `.gguf` file, or `demo`. `filenames` are names of GGUF
    files, `mmproj` is that of the file with the vision tower. `token_source` is the value of
    `--token-source` (`cache`, `env:NAME`, …). `uqff` are the names of UQFF files, which have the
    quantized weights of a model in safetensors format.
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
    """What a reply must match: the `text` of a grammar of some kind.

    `json_object` is any JSON object and needs no text; `llguidance` is that library's JSON form, as
    is `tool_calls`, which the program makes of tools.
    """

    kind: GrammarKind
    text: str = ""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; the defaults are those of a chat.

    `temperature` 0 chooses the most likely token. `top_k` None or 0, `top_p` 1, `min_p` 0 and
    penalties of 0 (`repetition_penalty` 1) are off. `logprobs` n returns the log probability of
    each token and of the n most likely ones; None is off. `prompt_logprobs` n does the same for the
    tokens of the prompt. `max_tokens` 0 computes the prompt alone. `logit_bias` has pairs (token
    id, value added to its logit). With `ignore_eos` no token ends the reply. The reply, without its
    thought, matches `grammar`.

    DRY: the logit of a token that would extend a repetition of n >= `dry_allowed_length` tokens is
    lowered by `dry_multiplier * dry_base ** (n - dry_allowed_length)`; the last token of each of
    `dry_sequence_breakers` ends a repetition.

    With a `seed` (which overrides the model's) the same prompt gets the same reply; requests that
    differ in `variant` get different random numbers. The `adapter` is one that requests choose.
    """

    temperature: float = 0.1
    top_k: int | None = 32
    top_p: float = 0.1
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.1
    presence_penalty: float = 0.1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    seed: int | None = None
    variant: int = 0
    ignore_eos: bool = False
    grammar: Grammar | None = None
    adapter: str | None = None


@dataclass(frozen=True)
class VisionRequest:
    """The vision settings of a model.

    Images with an edge longer than `max_edge` pixels are scaled down, if the model accepts images
    of any size. The plan reserves memory for `max_num_images` images of `max_image_length` x
    `max_image_length` pixels; these are hints, not limits.
    """

    max_edge: int | None = None
    max_num_images: int = 1
    max_image_length: int = 1024


@dataclass(frozen=True)
class PagedRequest:
    """The blocks of the KV cache, and the size of their pool.

    pool             whether the pool has a fixed size; None: it has if a size is given or if the
                     first device is a CUDA GPU that holds the whole model. Without it, blocks are
                     allocated as needed
    context_tokens   size of the pool in tokens
    memory_fraction  or: share of the first device's memory for weights, activations and the pool
    memory_mib       or: size of the pool in MiB; of several sizes the first one counts
    block_tokens     tokens in a block
    cache_type       type of keys and values; `auto` is f16 for a quantized model on a CPU, else
                     that of unquantized weights; f8e4m3 is for NVIDIA GPUs

    Raises UsageError and Unsupported.
    """

    pool: bool | None = None
    context_tokens: int | None = None
    memory_fraction: float | None = None
    memory_mib: int | None = None
    block_tokens: int = BLOCK_TOKENS
    cache_type: CacheType = "auto"

    def __post_init__(self) -> None:
        if self.block_tokens not in BLOCK_SIZES:
            sizes = ", ".join(map(str, BLOCK_SIZES[:-1]))
            raise UsageError(
                f"blocks of {self.block_tokens} tokens are not supported",
                where="--pa-blk-size",
                hint=f"give {sizes} or {BLOCK_SIZES[-1]}",
            )
        if self.cache_type not in CACHE_TYPES:
            raise Unsupported(
                f"a KV cache of type {self.cache_type} is not supported",
                where="--pa-cache-type",
                hint=f"give {', '.join(CACHE_TYPES[:-1])} or {CACHE_TYPES[-1]}",
            )

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

    workers        so many, which this process starts on this machine
    wait_for       or: so many, which join from other machines
    listen         the address where they join, HOST:PORT
    wait_limit_s   how long they may take; None is any time
    group_size     so many consecutive processes have the same layers and compute a share of each
                   (tensor parallelism); groups have different layers. 0 lets the head choose, when
                   it knows the machines
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
class RunRequest:
    """All settings of planning and loading a model.

    layer_map, isq         as the user wrote them, so that errors can quote them
    imatrix                importance matrix: how much the error of each column counts for `isq`
    calibration_file       text by which that is measured instead
    moqe                   `isq` quantizes only the experts of mixtures of experts
    topology               quantization and devices of single layers, and of experts
    max_seq_len            planned length of a sequence, a hint and not a limit; by default
                           `DEFAULT_SEQ_TOKENS`, or the model's context if that is shorter
    max_batch_size         planned number of sequences, a hint and not a limit
    plan_file              a saved plan, which is followed exactly
    cpu_spill              layers that do not fit into the accelerators may go to the CPU
    calibration            correct the plan by measurements of earlier runs on this machine
    vision                 set for vision models
    prefix_cache_n         number of past sequences that the prefix cache keeps on accelerators
    prefix_cache_dir       folder that stores the prefix cache between runs, if any
    prefix_cache_dir_size  size limit of that folder
    adapters               LoRA adapters; merged ones are added in this order
    cluster                set if other processes compute some of the layers
    reasoning_effort       how long the model thinks, for templates that know it
    target_gap_s           the time between two tokens of a reply that the prompts of others should
                           not exceed; None lets a prompt take steps of any length
    speculate              where drafts of the next tokens come from; replies are the same without
    draft_model            the model that drafts tokens instead: hub id, folder, file or `demo`
    reserved_bytes         bytes of each device, by its label, that its other models need;
                           negative if some will be freed
    max_models             models that may be loaded at once: their prefix caches share what is free
    write_uqff             path where the weights are written as UQFF before they are loaded
    """

    source: ModelSource
    arch: str | None = None
    dtype: Dtype = "auto"
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
    prefix_cache_dir: str | None = None
    prefix_cache_dir_size: str = "4GiB"
    max_seqs: int = 16
    max_seq_len: int | None = None
    max_batch_size: int = 1
    chat_template: str | None = None
    jinja_explicit: str | None = None
    thinking: bool | None = None
    reasoning_effort: Effort | None = None
    devices: tuple[str, ...] = ()
    speculate: Speculation = "ngram"
    draft_model: str | None = None
    strategy: Strategy = "fill"
    cpu_spill: bool = True
    calibration: bool = True
    plan_file: str | None = None
    vision: VisionRequest | None = None
    paged: PagedRequest = PagedRequest()
    target_gap_s: float | None = None
    reserved_bytes: tuple[tuple[str, int], ...] = ()
    max_models: int = 1
    adapters: tuple[AdapterRequest, ...] = ()
    cluster: ClusterRequest | None = None
    write_uqff: str | None = None

    @property
    def importance_file(self) -> str | None:
        """The file by which the quantization weighs columns."""
        return self.imatrix or self.calibration_file
