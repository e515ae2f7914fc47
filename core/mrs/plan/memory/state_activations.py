"""Activation bytes of operations with states, which torch computes sequence by sequence."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mrs.graph.operations import Convolve, DeltaRule, StateSpace
from mrs.kernels.native_limits import MAX_TAPS
from mrs.kernels.workspace import channel_delta_rule, delta_rule, state_space
from mrs.layers.forward_pass import ForwardShape

#: The buffer with which torch transposes on a CPU, 60 by 60 values at a time.
_TRANSPOSED_BYTES = 4 * 60 * 60
#: The widths of values by their numbers.
Widths = Sequence[int] | Mapping[int, int]


def state_scratch_bytes(
    operation: Convolve | DeltaRule | StateSpace,
    widths: Widths,
    wide: Collection[int],
    shape: ForwardShape,
) -> int:
    """Peak bytes beside what the operation reads, with what it makes, all in float32.

    Results of a sequence are copied to those of all sequences, if there are several. A convolution
    overwrites what it reads then.
    """
    one = shape.sequence_tokens
    if isinstance(operation, Convolve):
        channels = sum(widths[value] for value in operation.values_)
        return _convolution_bytes(operation, channels, one, is_native=shape.native)
    joined = 4 * shape.tokens * widths[operation.out] if shape.tokens > one else 0
    if isinstance(operation, DeltaRule):
        return joined + _delta_rule_bytes(operation, widths, one, shape)
    cast = 0
    if shape.activation.name != "F32":
        narrow = {operation.inputs, operation.outputs} - {*wide}
        cast = 4 * one * sum(widths[value] for value in narrow)
    return joined + cast + _state_space_bytes(operation, widths, one, is_native=shape.native)


def delta_rule_workspace(rule: DeltaRule, widths: Widths, threads: int) -> int:
    """The workspace of the native library."""
    key_dim = widths[rule.keys] // rule.key_heads
    if widths[rule.log_decays] > rule.heads:
        return channel_delta_rule.native_bytes(threads, key_dim)
    return delta_rule.native_bytes(threads, key_dim)


def _convolution_bytes(convolve: Convolve, channels: int, one: int, *, is_native: bool) -> int:
    """The result; in torch also the inputs with those before them, or the result transposed."""
    if is_native and convolve.taps <= MAX_TAPS:
        return 4 * channels * one
    return 4 * channels * one + max(
        4 * channels * (one + convolve.taps - 1), 4 * channels * one + _TRANSPOSED_BYTES
    )


def _delta_rule_bytes(rule: DeltaRule, widths: Widths, one: int, shape: ForwardShape) -> int:
    """The result, and the workspace; in torch queries and keys of each head, and one chunk."""
    result = 4 * one * widths[rule.out]
    if shape.native:
        return result + delta_rule_workspace(rule, widths, shape.threads)
    heads, key_dim = rule.heads, widths[rule.keys] // rule.key_heads
    if widths[rule.log_decays] > heads:
        return result + channel_delta_rule.chunk_bytes(one, heads, key_dim)
    repeated = 2 * 4 * one * heads * key_dim if rule.key_heads < heads else 0
    chunk = delta_rule.chunk_bytes(one, heads, key_dim, widths[rule.values_] // heads)
    return repeated + result + max(chunk, result)


def _state_space_bytes(space: StateSpace, widths: Widths, one: int, *, is_native: bool) -> int:
    """The result; in torch also one chunk or its copy, or decays and what is added to the state."""
    result = 4 * one * widths[space.out]
    if is_native:
        return result
    head_dim = widths[space.out] // space.heads
    if space.decays > 1:
        return result + 2 * 4 * space.heads * space.decays
    state_dim = widths[space.inputs] // space.groups
    chunk = state_space.chunk_bytes(one, space.heads, head_dim, state_dim)
    return result + max(chunk, result)
