"""Loads the weights of a planned model, and makes its decoder of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mrs.events import OnProgress
    from mrs.model.decoder import Decoder
    from mrs.model.model_weights import ModelWeights
    from mrs.run.model_loader import ModelLoader


def load_decoder(
    loader: ModelLoader, report: OnProgress, wrap: Callable[[ModelWeights], ModelWeights]
) -> tuple[Decoder, ModelWeights]:
    """The decoder on its devices, and its weights as `wrap` returns them. Raises MrsError."""
    # Number the GPUs as NVIDIA's management library does, which the plan uses.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    import torch

    from mrs.engine.column_importance import column_importance
    from mrs.load.load import load_to_run
    from mrs.load.progress import weights_progress
    from mrs.load.tensor_reader import TORCH_DTYPES
    from mrs.model.decoder import Decoder
    from mrs.quantization.gguf.unquantized import DTYPES

    plan, planner = loader.plan, loader.planner
    torch_devices = [torch.device(device.torch_device) for device in plan.devices]
    loaded = load_to_run(
        planner.checkpoint,
        planner.description.parameters,
        plan.storage,
        {name: torch_devices[index] for name, index in plan.parameter_devices.items()},
        weights_progress(plan, report),
        column_importance(loader, report),
    )
    weights = wrap(loaded)
    decoder = Decoder(
        planner.description.spec,
        weights,
        [torch_devices[index] for index in plan.layer_devices],
        TORCH_DTYPES[plan.dense.name],
        DTYPES[plan.cache_format.name],
        adapters=planner.description.adapters,
    )
    return decoder, weights
