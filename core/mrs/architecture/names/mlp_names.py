"""Names of the matrices of an MLP, of experts and of shared experts in a module of a file."""

from __future__ import annotations

from collections.abc import Mapping


def mlp_names(slot: str, module: str) -> Mapping[str, str]:
    """The usual names of an MLP whose slots begin with `slot`."""
    return {f"{slot}.{part}": f"{module}.{part}_proj" for part in ("gate", "up", "down")}


def numbered_mlp_names(slot: str, module: str) -> Mapping[str, str]:
    """The names of an MLP whose matrices have numbers."""
    return {
        f"{slot}.gate": f"{module}.w1",
        f"{slot}.up": f"{module}.w3",
        f"{slot}.down": f"{module}.w2",
    }


#: Several shared experts that are one wide MLP.
SHARED_EXPERTS = mlp_names("ffn.shared", "mlp.shared_experts")

#: Files that may have all experts of a layer in two tensors.
STACKED_EXPERTS: Mapping[str, str] = {
    "ffn.experts.{expert}.gate_up.weight": "mlp.experts.gate_up_proj",
    "ffn.experts.{expert}.down.weight": "mlp.experts.down_proj",
}

#: A mixture of experts in a module of its own, with numbered matrices.
SPARSE_BLOCK: Mapping[str, str] = {
    "ffn.router": "block_sparse_moe.gate",
    **numbered_mlp_names("ffn.experts.{expert}", "block_sparse_moe.experts.{expert}"),
}
