"""Names of the matrices of an MLP, of experts and of shared experts in a module of a file."""

from __future__ import annotations

from collections.abc import Mapping

from mrs.architecture.tensor_names import SAFETENSORS


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


def linear_mlp_names(slot: str, module: str) -> Mapping[str, str]:
    """The names of an MLP whose gate and up matrices are one tensor."""
    return {f"{slot}.gate_up": f"{module}.input_linear", f"{slot}.down": f"{module}.output_linear"}


def moved_names(module: str, to: str) -> Mapping[str, str]:
    """The usual names of all that is in a module, if the file calls this module `to`."""
    return {
        slot: to + name.removeprefix(module)
        for slot, name in SAFETENSORS.items()
        if name.startswith(f"{module}.")
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

#: The same with shared experts and the MLP of dense layers, which transformers writes there, too.
SPARSE_BLOCKS: Mapping[str, str] = {
    **SPARSE_BLOCK,
    **mlp_names("ffn.shared", "block_sparse_moe.shared_experts"),
    "ffn.router.correction": "block_sparse_moe.gate.e_score_correction_bias",
    **mlp_names("ffn", "block_sparse_moe"),
    **{f"ffn.{part}.weight": f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")},
}

#: Granite's experts and shared MLP, each with gate and up in one tensor, of all experts.
GRANITE_MOE: Mapping[str, str] = {
    **linear_mlp_names("ffn.shared", "shared_mlp"),
    **linear_mlp_names("ffn.experts.{expert}", "block_sparse_moe"),
    "ffn.router": "block_sparse_moe.router.layer",
    # As newer files have it.
    "ffn.experts.{expert}.gate_up.weight": "block_sparse_moe.experts.gate_up_proj",
    "ffn.experts.{expert}.down.weight": "block_sparse_moe.experts.down_proj",
    "ffn.router.weight": "block_sparse_moe.router.weight",
}

#: An MLP, and experts outside of its module, with norms before and after both.
SANDWICH_MOE: Mapping[str, str] = {
    "ffn.norm": "pre_feedforward_layernorm",
    "ffn.router": "router.proj",
    "ffn.experts.{expert}.gate_up.weight": "experts.gate_up_proj",
    "ffn.experts.{expert}.down.weight": "experts.down_proj",
}
