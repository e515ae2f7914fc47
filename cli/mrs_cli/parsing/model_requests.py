"""From flags to a request: which model is loaded, on which devices, and how tokens are chosen."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import PurePath
from typing import Any, Literal

from mrs.distributed.peer_variables import local_ranks, may_shard_layers
from mrs.errors import Unsupported, UsageError
from mrs.request import (
    AdapterRequest,
    ClusterRequest,
    ModelSource,
    PagedRequest,
    RunRequest,
    Sampling,
    VisionRequest,
    require_whole_stages,
)
from mrs.request.sampling import SETTINGS
from mrs.request.setting_kinds import Texts, read_value
from mrs.topology import Topology, experts_on_cpu, read_topology
from mrs_cli.parsing.flags.cluster_flags import ClusterFlags
from mrs_cli.parsing.flags.global_flags import GlobalFlags
from mrs_cli.parsing.flags.model_flags import (
    AnyModelFlags,
    GgufFlags,
    LoraFlags,
    LoraGgufFlags,
    PlainFlags,
    VisionFlags,
)
from mrs_cli.parsing.flags.option import setting_flag
from mrs_cli.parsing.flags.paged_flags import PagedFlags
from mrs_cli.parsing.flags.planning_flags import ImageFlags, PlanningFlags
from mrs_cli.parsing.flags.sampling_flags import SamplingFlags
from mrs_cli.parsing.grammar_flags import read_grammar


def any_request(flags: GlobalFlags, model: AnyModelFlags, planning: PlanningFlags) -> RunRequest:
    """The request of a model whose files tell its kind. Raises MrsError."""
    from mrs.source.address import all_names

    names = all_names(model.filename)
    uqff = model.from_uqff
    if any(name.endswith(".uqff") for name in names):
        names, uqff = (), [*(model.filename or ()), *(uqff or ())]
    model_id = model.model_id
    if model_id is None and uqff:
        from mrs_cli.parsing.uqff_requests import folder_of

        model_id = folder_of(uqff)
    if model_id is None:
        if len(names) != 1:
            raise UsageError("no model is given", hint="add -m ID, such as: mrs -i -m demo")
        model_id, names = names[0], ()
    images = {name: getattr(model, name) for name in _IMAGE_FLAGS}
    plain = VisionFlags(
        model_id=model_id,
        arch=model.arch,
        tokenizer_json=model.tokenizer_json,
        hf_cache_path=model.hf_cache_path,
        from_uqff=uqff,
        write_uqff=model.write_uqff,
        **images,
    )
    request = plain_request(flags, plain, planning)
    source = replace(request.source, container="gguf", filenames=names)
    kind = _kind(source, model.format)
    _refuse_foreign(kind, model)
    if kind == "vision-plain":
        return replace(request, vision=_vision(plain))
    if kind == "plain":
        return request
    gguf = GgufFlags(
        quantized_model_id=model_id,
        quantized_filename=list(names),
        tok_model_id=model.tok_model_id,
        mmproj=model.mmproj or _projector_beside(source),
        **images,
    )
    request = gguf_request(flags, gguf, planning)
    source = replace(
        request.source, cache_path=model.hf_cache_path, tokenizer_json=model.tokenizer_json
    )
    return replace(request, source=source)


def _projector_beside(source: ModelSource) -> str | None:
    """The mmproj file in the folder of a GGUF model, if it fits."""
    from mrs.architecture.vision.mmproj import fits_model
    from mrs.source.find import find_projector

    return find_projector(source, fits_model)


def _kind(source: ModelSource, format: str | None) -> str:
    """The selector that a model needs, by its files or by `--format`."""
    if format == "gguf":
        return "gguf"
    from mrs.source.find import find_selector

    kind = find_selector(source)
    if format == "plain" and kind == "gguf":
        raise UsageError(
            f"{source.model_id} has GGUF files only", where="--format", hint="leave it out"
        )
    return kind


_IMAGE_FLAGS = [each.name for each in fields(ImageFlags)]
#: Flags that models of a kind do not have.
_FOREIGN = {
    "plain": ["tok_model_id", "mmproj", *_IMAGE_FLAGS],
    "vision-plain": ["tok_model_id", "mmproj"],
    "gguf": ["arch", "write_uqff"],
}


def _refuse_foreign(kind: str, model: AnyModelFlags) -> None:
    for name in _FOREIGN[kind]:
        if getattr(model, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{flag} is not for this model, whose kind is {kind}", hint="leave it out"
            )


def plain_request(flags: GlobalFlags, model: PlainFlags, planning: PlanningFlags) -> RunRequest:
    """The request of `plain`."""
    source = ModelSource(
        model_id=_model_id(model.model_id),
        container="safetensors",
        token_source=valid_token_source(flags.token_source),
        cache_path=model.hf_cache_path,
        tokenizer_json=model.tokenizer_json,
    )
    request = RunRequest(source, arch=model.arch, **_common(flags, planning))
    from mrs_cli.parsing.uqff_requests import with_uqff

    return with_uqff(request, model.from_uqff, model.write_uqff)


def vision_request(flags: GlobalFlags, model: VisionFlags, planning: PlanningFlags) -> RunRequest:
    """The request of `vision-plain`."""
    return replace(plain_request(flags, model, planning), vision=_vision(model))


def gguf_request(flags: GlobalFlags, model: GgufFlags, planning: PlanningFlags) -> RunRequest:
    """The request of `gguf`, for a vision model if a projector is named."""
    from mrs.source.address import all_names

    source = ModelSource(
        model_id=_model_id(model.quantized_model_id),
        container="gguf",
        filenames=all_names(model.quantized_filename),
        token_source=valid_token_source(flags.token_source),
        tokenizer_model_id=model.tok_model_id,
        mmproj=model.mmproj,
    )
    vision = _vision(model)
    if model.mmproj is None and vision != VisionRequest():
        raise UsageError(
            "image flags need a vision model", hint="name its projector with --mmproj FILE"
        )
    return RunRequest(source, vision=vision if model.mmproj else None, **_common(flags, planning))


def _vision(flags: ImageFlags) -> VisionRequest:
    given = {
        each.name: value
        for each in fields(VisionRequest)
        if (value := getattr(flags, each.name)) is not None
    }
    return VisionRequest(**given)


def lora_request(flags: GlobalFlags, model: LoraFlags, planning: PlanningFlags) -> RunRequest:
    """The request of `lora`."""
    return _with_merged(plain_request(flags, model, planning), model.adapters)


def lora_gguf_request(
    flags: GlobalFlags, model: LoraGgufFlags, planning: PlanningFlags
) -> RunRequest:
    """The request of `lora-gguf`."""
    return _with_merged(gguf_request(flags, model, planning), model.adapters)


def _with_merged(request: RunRequest, given: Sequence[str] | None) -> RunRequest:
    ids = [each.strip() for text in given or () for each in text.split(";") if each.strip()]
    if not ids:
        raise UsageError("no adapter is given", hint="add -a ID, or use mrs -m ID without one")
    return replace(request, adapters=(*map(AdapterRequest, ids), *request.adapters))


def _chosen_adapter(text: str) -> AdapterRequest:
    name, _, model_id = text.partition("=")
    if not name or not model_id:
        raise UsageError(f"--lora {text} is not valid", hint="give NAME=ID")
    return AdapterRequest(model_id, name, is_merged=False)


def _common(flags: GlobalFlags, planning: PlanningFlags) -> dict[str, Any]:
    """The fields of a request that do not depend on the selector, without those not given."""
    given = {
        "isq": _isq_format(flags.isq),
        "activations": flags.activations and int(flags.activations),
        "layer_map": flags.num_device_layers,
        "disk_layers": _disk_layers(flags.disk_layers),
        "max_seqs": flags.max_seqs,
        "prefix_cache_n": flags.prefix_cache_n,
        "prefix_cache_size": flags.prefix_cache_size,
        "prefix_cache_dir": flags.prefix_cache_dir,
        "prefix_cache_dir_size": flags.prefix_cache_dir_size,
        "speculate": flags.speculate,
        "draft_model": flags.draft_model,
        "mtp": _mtp(flags),
        "strategy": flags.strategy,
        "plan_file": flags.plan_file,
        "chat_template": _template("--chat-template", flags.chat_template, ".jinja", ".json"),
        "jinja_explicit": _template("--jinja-explicit", flags.jinja_explicit, ".jinja"),
        "thinking": _thinking(flags),
        "reasoning_effort": flags.reasoning_effort,
        "reasoning_budget": flags.reasoning_budget,
        "reasoning_budget_message": _text(flags.reasoning_budget_message),
        "dtype": planning.dtype,
        "topology": _topology(planning),
        "moqe": _moqe(planning.organization),
        "imatrix": planning.imatrix,
        "calibration_file": planning.calibration_file,
        "adapters": tuple(map(_chosen_adapter, planning.lora or ())),
        "max_seq_len": planning.max_seq_len,
        "max_batch_size": planning.max_batch_size,
    }
    return {
        "cpu": flags.cpu,
        "kv_cache": not flags.no_kv_cache,
        "cpu_spill": not flags.no_cpu_spill,
        "calibration": not flags.no_calibration,
        "paged": paged_request(flags),
        "cluster": cluster_request(flags),
        **{name: value for name, value in given.items() if value is not None},
    }


def cluster_request(
    flags: ClusterFlags, variables: Mapping[str, str] = os.environ
) -> ClusterRequest | None:
    """The processes that the flags ask for; None for this one alone. Raises UsageError."""
    if flags.workers and flags.wait_for:
        raise UsageError("--workers and --wait-for exclude each other", hint="give one of them")
    workers, wait_for = flags.workers or 0, flags.wait_for or 0
    group_size = flags.tensor_parallel_size or local_ranks(variables) or 0
    if not workers and not wait_for:
        workers = max(0, group_size - 1)
    if not workers and not wait_for:
        for name in ("listen", "wait_limit", "rejoin_limit"):
            if getattr(flags, name) is not None:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag} needs workers", hint="add --workers N or --wait-for N")
        return None
    require_whole_stages(workers + wait_for + 1, group_size)
    if not may_shard_layers(variables):
        group_size = 1
    rejoin_limit_s = flags.rejoin_limit or 0.0
    for flag, value in (("--wait-limit", flags.wait_limit), ("--rejoin-limit", rejoin_limit_s)):
        if value is not None and math.isnan(value):
            raise UsageError(f"{flag} nan is not a number of seconds")
    return ClusterRequest(
        workers, wait_for, flags.listen, flags.wait_limit, group_size, rejoin_limit_s
    )


def _mtp(flags: GlobalFlags) -> bool | None:
    """Whether the model's own draft head drafts; None leaves it to the plan."""
    if flags.mtp and flags.no_mtp:
        raise UsageError("--mtp and --no-mtp exclude each other", hint="give one")
    return flags.mtp or (False if flags.no_mtp else None)


def paged_request(flags: PagedFlags) -> PagedRequest:
    """The KV cache that the flags ask for. Raises UsageError and Unsupported."""
    if flags.paged_attn and flags.no_paged_attn:
        raise UsageError("--paged-attn and --no-paged-attn exclude each other", hint="give one")
    given: dict[str, Any] = {
        "block_tokens": flags.pa_blk_size,
        "cache_type": flags.pa_cache_type and flags.pa_cache_type.lower(),
        "key_cache_type": flags.cache_type_k and flags.cache_type_k.lower(),
        "value_cache_type": flags.cache_type_v and flags.cache_type_v.lower(),
    }
    return PagedRequest(
        pool=True if flags.paged_attn else False if flags.no_paged_attn else None,
        context_tokens=flags.pa_ctxt_len,
        memory_fraction=flags.pa_gpu_mem_usage,
        memory_mib=flags.pa_gpu_mem,
        **{name: value for name, value in given.items() if value is not None},
    )


def given_sampling(flags: SamplingFlags) -> dict[str, Any]:
    """The settings that flags give, by the names of `Sampling`. Raises UsageError."""
    given: dict[str, Any] = {
        each.name: value
        for each in fields(Sampling)
        if (value := getattr(flags, each.name, None)) is not None
    }
    for name, value in given.items():
        if isinstance(value, list):
            given[name] = _several(name, list(map(valid_text, value)))
    if flags.grammar is not None or flags.json_schema is not None:
        given["grammar"] = read_grammar(flags.grammar, flags.json_schema)
    return given


def _several(name: str, given: list[str]) -> Any:
    """The value of a flag that was given several times."""
    kind, flag = SETTINGS[name].kind, setting_flag(name)
    if not isinstance(kind, Texts):
        parts = [kind.parse(text, spelled=f"{flag} {text}") for text in given]
        return read_value(kind, [each for part in parts for each in part], spelled=flag)
    if "" in given:
        raise UsageError(f"{flag} is empty", hint="give it a text")
    return read_value(kind, given, spelled=flag)


def valid_text(argument: str) -> str:
    """`argument` with bytes that are not UTF-8 replaced, so that it can be encoded again."""
    return argument.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _text(argument: str | None) -> str | None:
    return None if argument is None else valid_text(argument)


def _model_id(text: str) -> str:
    if not text.strip():
        raise UsageError("-m is empty", hint="give a hub id, a local folder or demo")
    return text


def _template(flag: str, path: str | None, *suffixes: str) -> str | None:
    if path is not None and PurePath(path).suffix.lower() not in suffixes:
        raise UsageError(f"{flag} {path} is not a {' or '.join(suffixes)} file")
    return path


def _topology(planning: PlanningFlags) -> Topology | None:
    """The rules of --topology, and after them those of --n-cpu-moe and --cpu-moe."""
    read = read_topology(planning.topology) if planning.topology is not None else Topology()
    if planning.cpu_moe or planning.n_cpu_moe:
        rule = experts_on_cpu(None if planning.cpu_moe else planning.n_cpu_moe)
        read = Topology((*read.rules, rule), read.where)
    return read if read.rules else None


def _disk_layers(text: str | None) -> int | Literal["auto"] | None:
    if text is None or text.lower() == "auto":
        return None if text is None else "auto"
    if not re.fullmatch("[0-9]{1,9}", text):
        raise UsageError(
            f"--disk-layers {text} is not valid", hint="give a number of layers, or auto"
        )
    return int(text)


def _moqe(organization: str | None) -> bool | None:
    if organization is None or organization.lower() == "default":
        return None
    if organization.lower() == "moqe":
        return True
    raise Unsupported(
        f"-o {organization} is not supported",
        hint="give default or moqe; as --order of adapters, leave it out",
    )


def _isq_format(isq: str | None) -> str | None:
    if isq is not None and isq.lower() == "auto":
        raise Unsupported(
            "--quant auto is not supported",
            hint="mrs fit finds a format for this machine; give it with --isq",
        )
    return isq


def _thinking(flags: GlobalFlags) -> bool | None:
    text, effort = flags.thinking, flags.reasoning_effort
    if text is None:
        return None if effort is None else effort not in ("none", "off")
    if text.lower() not in ("true", "false"):
        raise UsageError(
            f"--thinking {text} is not valid", hint="give true or false; without a value it is true"
        )
    return text.lower() == "true"


def valid_token_source(text: str | None) -> str:
    """`text` if it is valid. An error never quotes a literal token."""
    if text is None or text in ("cache", "none"):
        return text or "cache"
    kind, colon, value = text.partition(":")
    if kind not in ("literal", "env", "path") or not (colon and value):
        quoted = f"{kind}{colon}" if colon else kind
        raise UsageError(
            f"--token-source {quoted} is not valid",
            hint="give literal:VALUE, env:NAME, path:FILE, cache or none",
        )
    return text
