"""What a person asks for: which model, on which devices, how to sample. Plain values, no work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

from mrs.block_sizes import BLOCK_SIZES, BLOCK_TOKENS
from mrs.errors import Unsupported, UsageError

Container = Literal["safetensors", "gguf"]
Dtype = Literal["auto", "bf16", "f16", "f32"]
Strategy = Literal["fill", "spread", "fastest"]
CacheType = Literal["auto", "f16", "bf16", "f32"]
CACHE_TYPES: tuple[CacheType, ...] = get_args(CacheType)
#: What `mrs plan --solve` looks for.
SolveGoal = Literal["max-seq-len", "max-batch-size", "isq"]

#: Most prompt tokens in one forward pass: bounds activations, and is what a plan counts with.
PREFILL_CHUNK_TOKENS = 512
#: Length of a sequence that is planned for where nobody gives one and the model is not shorter.
DEFAULT_SEQ_TOKENS = 4096


#: Stands in a message's content where an image belongs: Unicode's object replacement character.
IMAGE_MARK = "\ufffc"


class _Images(TypedDict, total=False):
    images: Sequence[str]


class Message(_Images):
    """One turn of a conversation, as chat templates see it.

    `images` are paths, file://, http(s):// or data: URLs; `content` holds one IMAGE_MARK for each,
    in order, and what a person typed holds none. A message without images may lack the field.
    """

    role: str
    content: str


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from.

    `model_id` is a hub id, a local folder, a `.gguf` file, or `demo`. `filenames` names GGUF
    files, and `mmproj` the one that sees for such a model. `token_source` is spelled as on the
    command line (`cache`, `env:NAME`, …).
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


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; the defaults are those of a chat.

    `temperature` 0 takes the most likely token. `top_k` None or 0, `top_p` 1 and `min_p` 0 switch
    their filter off, as do penalties of 0 (`repetition_penalty` 1). With `logprobs`, each token
    comes with its probability and those of that many likeliest ones.

    `logit_bias` are pairs of a token id and what is added to its logit. A token that would make a
    repetition of n tokens longer loses `dry_multiplier * dry_base ** (n - dry_allowed_length)`
    where n is at least `dry_allowed_length`; the last token of each of `dry_sequence_breakers`
    ends a repetition. With a `seed`, instead of the model's own if it has one, the same prompt gets
    the same reply; replies that differ in `variant` draw other chances. With `ignore_eos` no token
    ends the reply.
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
    logit_bias: tuple[tuple[int, float], ...] = ()
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    seed: int | None = None
    variant: int = 0
    ignore_eos: bool = False


@dataclass(frozen=True)
class VisionRequest:
    """How a model sees: `max_edge` is the longest edge, in pixels, that an image keeps where the
    model's family allows resizing. The plan counts with `max_num_images` images of
    `max_image_length` pixels a side, which are hints, never limits of a run.
    """

    max_edge: int | None = None
    max_num_images: int = 1
    max_image_length: int = 1024


@dataclass(frozen=True)
class PagedRequest:
    """The blocks of the KV cache, and the pool that a run is limited to.

    `pool` says whether there is one; None for one where a size of it is given or the first device
    is a CUDA GPU that holds the whole model. Of several sizes the first counts: the tokens that it holds, the fraction of
    the first device's memory that it may fill together with weights and activations, or MiB.
    Without a pool, there are as many blocks as are needed. `cache_type` is the type of keys and
    values, `auto` that of the weights. Raises UsageError and Unsupported.
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
                f"the KV cache has no blocks of {self.block_tokens} tokens",
                where="--pa-blk-size",
                hint=f"give {sizes} or {BLOCK_SIZES[-1]}",
            )
        if self.cache_type not in CACHE_TYPES:
            raise Unsupported(
                f"the KV cache cannot be kept as {self.cache_type}",
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
class RunRequest:
    """Everything that decides how a model is planned and loaded.

    `layer_map` and `isq` are kept as written, so that errors can quote them. `max_seq_len` and
    `max_batch_size` are hints for planning, never limits of a run; without the former a plan is
    made for `DEFAULT_SEQ_TOKENS`, or the model's whole context if that is shorter. `plan_file` is
    a saved plan to run exactly; `cpu_spill` lets layers go to the CPU where an accelerator is full;
    `calibration` corrects the plan by what was measured on this machine before. `vision` is there
    where the model is asked for as one that sees. Past sequences are kept in `prefix_cache_dir`,
    in at most `prefix_cache_dir_size`, where it names a folder.
    """

    source: ModelSource
    arch: str | None = None
    dtype: Dtype = "auto"
    isq: str | None = None
    layer_map: str | None = None
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
    devices: tuple[str, ...] = ()
    strategy: Strategy = "fill"
    cpu_spill: bool = True
    calibration: bool = True
    plan_file: str | None = None
    vision: VisionRequest | None = None
    paged: PagedRequest = PagedRequest()
