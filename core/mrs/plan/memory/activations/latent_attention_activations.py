"""Activation bytes of multi-head latent attention; see `mrs.plan.memory.layer_activations`."""

from __future__ import annotations

from mrs.architecture.mixers.mla_spec import LatentAttention
from mrs.plan.memory.activations.attention_activations import native_attention_bytes
from mrs.plan.memory.forward_pass import ForwardShape, StorageOf, head_product_bytes, product_bytes
from mrs.sizes.attention_workspace import is_native
from mrs.sizes.mla_scores import heads_at_once


def latent_attention_bytes(
    mla: LatentAttention, shape: ForwardShape, hidden_size: int, storage_of: StorageOf
) -> int:
    """Peak of these phases, for MLA whose kv_b_proj is absorbed into queries and results.

    phase     allocated
    absorb    q, and the larger of: the product of q and kv_b's key rows; that product, the
              queries (latent and rope part) and twice the rope part
    then      queries, and the largest of:
      write   two key rows, one latent vector and the latent part's product
      attend  the latent result and the workspace of attention
      values  the latent result and its product with kv_b's value rows
      order   the latent result and the values twice, to make them contiguous
      project the latent result, the values and o_proj
    """
    key_dim = mla.kv_lora_rank + mla.rope.dim
    q = shape.size(mla.heads * (mla.qk_nope_head_dim + mla.rope.dim))
    latents = shape.size(mla.heads * mla.kv_lora_rank)
    queries = shape.size(mla.heads * key_dim)
    writing = shape.size(2 * key_dim + mla.kv_lora_rank)
    writing += product_bytes(shape, hidden_size, key_dim, storage_of("mixer.kv_a"))
    absorbing = head_product_bytes(shape, mla.heads, mla.qk_nope_head_dim, mla.kv_lora_rank)
    joining = latents + queries + 2 * shape.size(mla.heads * mla.rope.dim)
    making_queries = q + max(absorbing, joining)
    attending = latents + _latent_workspace_bytes(mla, shape.of_one_sequence())
    values = shape.size(mla.heads * mla.v_head_dim)
    projection = product_bytes(
        shape, mla.heads * mla.v_head_dim, hidden_size, storage_of("mixer.o"), bias=mla.bias
    )
    making_values = head_product_bytes(shape, mla.heads, mla.kv_lora_rank, mla.v_head_dim)
    ending = latents + max(making_values, 2 * values, values + projection)
    return max(making_queries, queries + max(writing, attending, ending))


def _latent_workspace_bytes(mla: LatentAttention, shape: ForwardShape) -> int:
    """The native kernel's workspace; or that of torch:

    queries and keys in the cache's type, keys in float32 (two copies at once), the result, and the
    scores of some heads: three times in float32 and two boolean masks.
    """
    key_dim = mla.kv_lora_rank + mla.rope.dim
    if shape.native and is_native(key_dim, mla.kv_lora_rank):
        return native_attention_bytes(mla.heads, key_dim, mla.kv_lora_rank, shape)
    pairs = shape.tokens * shape.context_tokens
    scores = pairs * min(mla.heads, heads_at_once(shape.tokens, shape.context_tokens))
    keys = shape.context_tokens * key_dim * (2 * 4 + shape.key_bytes)
    cast = shape.tokens * mla.heads * key_dim * shape.key_bytes
    return cast + (3 * 4 + 2) * scores + keys + shape.size(mla.heads * mla.kv_lora_rank)
