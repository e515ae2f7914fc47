"""Activation bytes of what the native library computes in one call."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.graph.operations import Attend, AttendToImages, ChooseKeys, DeltaRule, Mix, Project
from mrs.graph.program import Program
from mrs.kernels.workspace.attention import choosing_bytes
from mrs.kernels.workspace.products import panels_bytes, shared_bytes
from mrs.layers.attention.memory import native_attention_bytes, score_bytes
from mrs.layers.forward_pass import ForwardShape, StorageOf
from mrs.plan.memory.state_activations import delta_rule_workspace
from mrs.quantization.storage import Storage


def native_part_bytes(
    program: Program, hidden_size: int, shape: ForwardShape, storage_of: StorageOf
) -> int:
    """Peak bytes of a part of a layer: its input, its stream, its values and a workspace.

    Those that a step gives are among the values.
    """
    values = program.arena_floats(shape.tokens) * shape.activation.block_bytes
    values += shape.size(program.given_floats)
    workspace = 0
    for stretch in program.stretches:
        rows = stretch.rows(shape.tokens)
        for each in program.operations[stretch.first : stretch.end]:
            if isinstance(each, Project):
                columns = program.places[each.x].width
                needed = _product_bytes(each, shape, rows, columns, storage_of)
                workspace = max(workspace, needed)
            elif isinstance(each, Attend):
                needed = score_bytes(each.attention, shape.of_one_sequence())
                workspace = max(workspace, needed)
            elif isinstance(each, AttendToImages):
                cross, one = each.attention, shape.of_one_sequence()
                group, dim = cross.heads // cross.kv_heads, cross.head_dim
                workspace = max(workspace, native_attention_bytes(group, dim, dim, one))
            elif isinstance(each, ChooseKeys):
                workspace = max(workspace, _choosing_bytes(each, program, shape))
            elif isinstance(each, Mix):
                columns = program.places[each.x].width
                workspace = max(workspace, _mixture_bytes(each, shape, rows, columns, storage_of))
            elif isinstance(each, DeltaRule):
                widths = {value: program.places[value].width for value in each.reads}
                workspace = max(workspace, delta_rule_workspace(each, widths, shape.threads))
    return 2 * shape.size(hidden_size) + values + workspace


def _choosing_bytes(choose: ChooseKeys, program: Program, shape: ForwardShape) -> int:
    if shape.context_tokens <= program.places[choose.choice].width:
        return 0
    one = shape.of_one_sequence()
    key_dim = program.places[choose.x].width // choose.heads
    return choosing_bytes(one.tokens, one.context_tokens, key_dim, shape.threads)


def _product_bytes(
    product: Project, shape: ForwardShape, rows: int, columns: int, storage_of: StorageOf
) -> int:
    return _workspace_bytes(shape, [storage_of(slot) for slot in product.slots], rows, columns)


def _mixture_bytes(
    mix: Mix, shape: ForwardShape, rows: int, columns: int, storage_of: StorageOf
) -> int:
    """The workspace of an expert that gets all tokens, at most."""
    *into, out = (
        [storage_of(slot) for slot in mix.slots[part :: len(mix.parts)]]
        for part in range(len(mix.parts))
    )
    return max(
        *(_workspace_bytes(shape, each, rows, columns) for each in {*zip(*into, strict=True)}),
        *(_workspace_bytes(shape, [each], rows, mix.moe.expert.intermediate) for each in {*out}),
    )


def is_packed(shape: ForwardShape, storage: Storage) -> bool:
    """Whether a matrix is packed for the native library.

    Those with adapters that stay apart are multiplied one by one.
    """
    return shape.native and not shape.adapter_rank and storage.form == "packed"


def _workspace_bytes(
    shape: ForwardShape,
    storages: Sequence[Storage],
    tokens: int,
    columns: int,
) -> int:
    """The activations of matrices with permuted columns are packed for each."""

    def packed(some: Sequence[Storage]) -> int:
        once = [each.format.name for each in some if not each.residuals]
        twice = [each.format.name for each in some if each.residuals]
        return panels_bytes(shape.path, once, tokens, columns, twice)

    apart = sum(packed([each]) for each in storages if each.is_permuted)
    together = packed([each for each in storages if not each.is_permuted])
    return shared_bytes(tokens, columns, apart + together)
