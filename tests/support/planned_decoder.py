"""Decoders of checkpoints that are loaded as their plans say, on chosen devices."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mrs.architecture.description import Description
from mrs.load.load import load_weights
from mrs.load.tensor_reader import TORCH_DTYPES
from mrs.model.decoder import Decoder
from mrs.model.model_weights import ModelWeights
from mrs.plan.plan import Plan
from mrs.quantization.kv_type import kv_type
from mrs.source import Checkpoint


def planned_decoder(
    checkpoint: Checkpoint, description: Description, plan: Plan, devices: Sequence[torch.device]
) -> tuple[ModelWeights, Decoder]:
    """The layers are spread evenly over `devices`; all other weights are on the first."""
    count = len(description.spec.layers)
    layer_devices = [devices[layer * len(devices) // count] for layer in range(count)]
    device_of = {
        p.name: devices[0] if p.layer is None else layer_devices[p.layer]
        for p in description.parameters
    }
    weights = load_weights(
        checkpoint, description.parameters, plan.storage, device_of, lambda name, size_bytes: None
    )
    dtypes = TORCH_DTYPES[plan.dense.name], kv_type(plan.cache_format.name)
    return weights, Decoder(
        description.spec, weights, layer_devices, *dtypes, adapters=description.adapters
    )
