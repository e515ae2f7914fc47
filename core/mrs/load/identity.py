"""What the numbers of a running model depend on, so that caches of another are never taken."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

from mrs.kernels.cpu.library import path_name
from mrs.plan.plan import Plan
from mrs.source.checkpoint import Checkpoint
from mrs.source.weights import Weights

#: So much is read of so many tensors: fine-tuned models differ from each other in nothing else.
SAMPLE_BYTES = 4096
SAMPLED_TENSORS = 2048


def model_identity(checkpoint: Checkpoint, plan: Plan) -> str:
    """A hash of the model's configuration, its weights as they are kept, and what computes.

    Of the weights, which have to be on this machine, the table of all tensors and the middle of
    each count. Raises NotReadable.
    """
    found = hashlib.sha256()
    for line in _facts(checkpoint, plan):
        found.update(line.encode() + b"\n")
    with Weights(checkpoint) as weights:
        tensors = [checkpoint.tensors[name] for name in sorted(checkpoint.tensors)]
        for info in tensors[:: -(-len(tensors) // SAMPLED_TENSORS) or 1]:
            start = max(0, (info.size_bytes - SAMPLE_BYTES) // 2)
            sample = bytearray(min(SAMPLE_BYTES, info.size_bytes))
            weights.read_into(memoryview(sample), info, start)
            found.update(sample)
    return found.hexdigest()


def _facts(checkpoint: Checkpoint, plan: Plan) -> Iterator[str]:
    config = checkpoint.config
    plain = {key: config[key] for key in config if _is_plain(checkpoint, key)}
    yield json.dumps(plain, sort_keys=True, default=str)
    types = f"{plan.dense.name} {plan.cache_format.name}"
    yield f"{plan.model.family} {plan.model.fingerprint} {types} {path_name()}"
    for name, kept in sorted(plan.storage.items()):
        device = plan.devices[plan.parameter_devices[name]]
        kind = device.torch_device.partition(":")[0]
        yield f"{name} {kept.format.name} {kept.form} {kind} {device.name}"


def _is_plain(checkpoint: Checkpoint, key: str) -> bool:
    """Whether a value of the configuration is no list of a GGUF file's many tokens."""
    return checkpoint.container == "safetensors" or not key.startswith("tokenizer.")
