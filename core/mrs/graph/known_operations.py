"""What an executor computes of an operation: the fields that it names, others at their defaults.

Torch runs every operation and reads all of its fields: it defines them. The native library and the
CUDA kernels have been checked for those below. A field that is new is unknown to both: a program
of the native library is refused by name, and CUDA kernels leave the operation to torch.
"""

from __future__ import annotations

from mrs.graph.operations import Operation
from mrs.layers.known_fields import Known, set_beyond

#: The fields of the time when executors began to name them, whether one has the operation or not.
#: A new field does not belong here: an executor that computes it names it, by `with_fields`.
SETTLED_OPERATIONS: Known = {
    "Activate": "x up activation clamp",
    "Add": "x y",
    "AddBias": "x name",
    "AddToRuns": "x y",
    "AddWeighed": "x y weights runs more",
    "Attend": "x out attention choice",
    "AttendBothWays": "x keys values_ out attention",
    "ChooseKeys": "x weights choice heads",
    "Clamp": "x least most",
    "Compute": "x out module",
    "Convolve": "values_ slot taps first_row first_channel bias silu",
    "CutOff": "x deviations",
    "DeltaRule": "queries keys values_ log_decays strengths out heads key_heads tiled",
    "Embed": "out slot",
    "Join": "x y out runs tail",
    "Mix": "x choice out rows hidden order moe",
    "Multiply": "x y",
    "Normalize": "x out slot norm size is_shared",
    "Project": "x outs slots norm normed added",
    "ProjectSmall": "x out name heads is_transposed",
    "Rotate": "x heads rope",
    "Route": "x choice scores ranks normed router",
    "Scale": "x factor",
    "ScaleEach": "x name size",
    "ScaleToLength": "x size length",
    "Split": "x outs runs",
    "StateSpace": "x inputs outputs times out heads groups decays",
    "SumOfRanks": "values_",
    "Take": "x out first",
    "Weigh": "x y gate slot",
    "WriteCache": "keys values_ kv_heads is_index",
    "Xielu": "x slot values_",
}


def unknown_field(operation: Operation, known: Known) -> str | None:
    """A field that has been set and is not `known`; None if there is none.

    An operation that is not in the table is a new one, whose executors read it whole.
    """
    names = known.get(type(operation).__name__)
    return None if names is None else next(set_beyond(operation, names), None)
