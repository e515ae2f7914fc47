"""The identity of a loaded model: cached keys and values are only valid for the same identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator

from mrs.kernels.cpu.library import path_name
from mrs.plan.plan import Plan
from mrs.request import RunRequest
from mrs.source.checkpoint import Checkpoint
from mrs.source.reader import LocalFile, expanded
from mrs.source.weights import Weights

#: How many bytes of how many tensors are hashed: fine-tuned models differ in nothing but weights.
SAMPLE_BYTES = 4096
SAMPLED_TENSORS = 2048


def model_identity(checkpoint: Checkpoint, plan: Plan, request: RunRequest | None = None) -> str:
    """A hash of the model's config, its weights, their storage, and the CPU path and devices.

    The weights must be on this machine; a sample from the middle of each tensor is hashed. So is
    the file by which the request weighs columns. Raises NotReadable.
    """
    return _digest(_facts(checkpoint, plan), checkpoint, request)


def layers_identity(checkpoint: Checkpoint, plan: Plan, request: RunRequest) -> str:
    """A hash of what decides the bytes of layers on disk: of the model, its files and formats."""
    storage = sorted(plan.storage.items())
    packed = (f"{name} {each.format.name}" for name, each in storage if each.form == "packed")
    facts = [*_config(checkpoint), plan.model.fingerprint, path_name(), *packed]
    return _digest(facts, checkpoint, request)


def _digest(facts: Iterable[str], checkpoint: Checkpoint, request: RunRequest | None) -> str:
    """Of lines, of a sample of the weights, and of the file that weighs columns."""
    digest = hashlib.sha256()
    for line in facts:
        digest.update(line.encode() + b"\n")
    path = request and request.importance_file
    if path:
        file = LocalFile(expanded(path))
        digest.update(file.read(0, file.size_bytes))
    with Weights(checkpoint) as weights:
        tensors = [checkpoint.tensors[name] for name in sorted(checkpoint.tensors)]
        for info in tensors[:: -(-len(tensors) // SAMPLED_TENSORS) or 1]:
            start = max(0, (info.size_bytes - SAMPLE_BYTES) // 2)
            sample = bytearray(min(SAMPLE_BYTES, info.size_bytes))
            weights.read_into(memoryview(sample), info, start)
            digest.update(sample)
    return digest.hexdigest()


def _facts(checkpoint: Checkpoint, plan: Plan) -> Iterator[str]:
    """One line for the config, one for the model, and one for each parameter."""
    yield from _config(checkpoint)
    types = f"{plan.dense.name} {plan.cache_format.name}"
    yield f"{plan.model.family} {plan.model.fingerprint} {types} {path_name()}"
    for name, storage in sorted(plan.storage.items()):
        device = plan.devices[plan.parameter_devices[name]]
        kind = device.torch_device.partition(":")[0]
        form = f"{storage.form} with residuals" if storage.residuals else storage.form
        yield f"{name} {storage.format.name} {form} {kind} {device.name}"


def _config(checkpoint: Checkpoint) -> Iterator[str]:
    config = checkpoint.config
    plain = {key: config[key] for key in config if _is_plain(checkpoint, key)}
    yield json.dumps(plain, sort_keys=True, default=str)


def _is_plain(checkpoint: Checkpoint, key: str) -> bool:
    """Whether a config value is hashed: all but the long token lists of GGUF files."""
    return checkpoint.container == "safetensors" or not key.startswith("tokenizer.")
