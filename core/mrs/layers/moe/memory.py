"""Activation bytes of experts; see `mrs.plan.memory.layer_activations`."""

from __future__ import annotations

from mrs.kernels.workspace.experts import choice_floats, rank_floats
from mrs.layers.forward_pass import ForwardShape, StorageOf, norm_bytes, product_bytes
from mrs.layers.mlp.memory import mlp_bytes, mlp_bytes_of
from mrs.layers.moe.spec import MlpAndMoe, Moe


def moe_bytes(moe: Moe, shape: ForwardShape, hidden_size: int, storage_of: StorageOf) -> int:
    """Peak of these phases.

    route    x in float32 (unless it is), and the scores of all experts three times, or with
             native kernels the scores, ranks and choice of `native/experts.h`
    experts  four lists of (token, expert) pairs, the sum, and at worst one expert that gets
             all tokens: a copy of x and its MLP
    latent   the linear maps before and after the experts, if they work on latent vectors
    shared   the sum and the shared expert; then the sum, two more of its size, and x in
             float32 if the shared expert has a gate
    """
    router = moe.router
    x = shape.size(hidden_size)
    wide_x = 4 * shape.tokens * hidden_size if shape.activation.name != "F32" else 0
    routed = 3 * router.experts
    if shape.native:
        ranks = rank_floats(router.experts, router.n_group, router.topk_group)
        routed = max(routed, router.experts + ranks + choice_floats(router.top_k))
    scores = wide_x + 4 * shape.tokens * routed
    pairs = 4 * 8 * shape.tokens * router.top_k
    width = moe.latent or hidden_size
    expert = mlp_bytes_of(moe.expert, shape, width, storage_of, "ffn.experts.0")
    experts = pairs + 2 * shape.size(width) + expert
    phases = [scores, experts]
    if moe.latent is not None:
        into = product_bytes(
            shape, hidden_size, width, storage_of("ffn.latent_in"), bias=moe.latent_bias
        )
        out = product_bytes(
            shape, width, hidden_size, storage_of("ffn.latent_out"), bias=moe.latent_bias
        )
        phases += [pairs + into, shape.size(width) + experts, pairs + shape.size(2 * width) + out]
    if moe.shared is not None:
        shared = mlp_bytes_of(moe.shared, shape, hidden_size, storage_of, "ffn.shared")
        phases += [x + shared, 3 * x + (wide_x if moe.shared_gate else 0)]
    return max(phases)


def mlp_and_moe_bytes(
    both: MlpAndMoe, shape: ForwardShape, hidden_size: int, storage_of: StorageOf
) -> int:
    """Peak of these phases. X is the size of x (T, h).

    MLP      its norm and the MLP, then the norm of the result
    experts  the result of the MLP, a norm and the experts, with x in float32 normalized for the
             router; then the norm of the result
    """
    x, norm = shape.size(hidden_size), norm_bytes(shape, hidden_size)
    mlp = x + max(norm, mlp_bytes(both.mlp, shape, hidden_size, storage_of))
    routed = 3 * 4 * shape.tokens * hidden_size
    moe = 2 * x + max(moe_bytes(both.moe, shape, hidden_size, storage_of) + routed, norm)
    return max(mlp, moe, 2 * x + norm)
