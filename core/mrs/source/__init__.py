"""Model files: where they are, their headers, and access to their bytes."""

from mrs.source.checkpoint import Checkpoint, TensorInfo, WeightsFile
from mrs.source.find import Selector, fetch, find_selector, open_checkpoint
from mrs.source.folder import Progress
from mrs.source.weights import Weights

__all__ = [
    "Checkpoint",
    "Progress",
    "Selector",
    "TensorInfo",
    "Weights",
    "WeightsFile",
    "fetch",
    "find_selector",
    "open_checkpoint",
]
