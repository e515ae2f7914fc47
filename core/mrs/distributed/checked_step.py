"""A step of the coordinator as a checked value: no length, index or position in it can be wrong.

What a worker computes with goes to native code by its address. So nothing of a `Step` is used but
what `checked_step` has compared with the worker's part of the model and with its caches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mrs.distributed.protocol.channel import Damaged
from mrs.distributed.protocol.messages import SequenceStep, Step
from mrs.plan.memory.cache_size import blocks_of

_Ints = NDArray[np.int64]
#: Native code counts tokens and blocks in 32 bits.
_MOST_LENGTH = (1 << 31) - 1
#: A table has a row for each sequence, each as long as the longest one.
_MOST_TABLE_BLOCKS = 1 << 26
#: Images advance rotary positions by other steps than their tokens, a video by seconds.
_MOST_AHEAD = 1 << 16


class KnownState(NamedTuple):
    """A recurrent state: the index of its cache, and the tokens that it has taken up."""

    cache: int
    length: int


@dataclass(frozen=True)
class FirstLayers:
    """What the first layers of a model read: tokens, and features of images.

    Tokens are less than `vocabulary`, positions less than `positions` if there is a table of them.
    Each row of an image has `hidden` features, and perhaps as many more for each of the first of
    `layers`.
    """

    vocabulary: int
    hidden: int
    layers: int
    positions: int | None = None


@dataclass(frozen=True)
class StepLimits:
    """What a step must agree with.

    `input_bytes`  of a token's inputs of layers, 0 if they do not come with the steps.
    `has_axes`     whether tokens may have positions in time, height and width.
    `first`        None for layers that are not the first ones.
    `group_blocks` the blocks in all caches of each group.
    `state_caches` the indices of the caches without blocks.
    """

    block_tokens: int
    most_tokens: int
    input_bytes: int
    has_axes: bool
    first: FirstLayers | None
    group_blocks: dict[int, int]
    state_caches: Sequence[int]


class CheckedImage(NamedTuple):
    """Rows (R) of the batch, and the values of each of their features."""

    rows: _Ints
    width: int


class CheckedTable(NamedTuple):
    """Block tables (B, P) int32 of a group, padded with zeros, and slots (N) int64."""

    blocks: NDArray[np.int32]
    slots: _Ints


class CheckedStep(NamedTuple):
    """N tokens of B sequences, like `ForwardBatch`; all arrays are the owner's to write.

    `starts` (B + 1) and `lengths` (B), new tokens included, are int32. `states` are the ids of all
    states of each sequence.
    """

    number: int
    starts: NDArray[np.int32]
    lengths: NDArray[np.int32]
    rope_lengths: list[int]
    tables: list[CheckedTable]
    states: list[list[int]]
    positions: _Ints
    attention_ends: _Ints | None
    wanted: list[int]
    scored: int
    token_ids: _Ints | None
    layer_inputs: NDArray[np.float32] | None
    images: list[CheckedImage]

    @property
    def tokens(self) -> int:
        return int(self.starts[-1])


def checked_step(step: Step, limits: StepLimits, known: Mapping[int, KnownState]) -> CheckedStep:
    """Raises Damaged, with the name of the field that contradicts the limits."""
    starts, ends = [0], []
    for sequence in step.sequences:
        end = sequence.start + sequence.count
        if sequence.start < 0 or sequence.count < 1 or end > _MOST_LENGTH:
            raise _wrong("start", f"{sequence.count} tokens after {sequence.start}")
        if not end <= sequence.rope_length <= _MOST_LENGTH:
            raise _wrong("rope_length", f"{sequence.rope_length} of {end} tokens")
        starts.append(starts[-1] + sequence.count)
        ends.append(end)
    total = starts[-1]
    if not 0 < total <= limits.most_tokens:
        raise _wrong("count", f"{total} tokens of a step for {limits.most_tokens} at most")
    _check_states(step.sequences, limits, known)
    _check_rows(step, total)
    firsts, lengths = np.array(starts, np.int32), np.array(ends, np.int32)
    counts = np.diff(firsts)
    #: The index of each token in its sequence, and the end of that sequence.
    token_ends = np.repeat(lengths, counts).astype(np.int64)
    indices = token_ends + np.arange(total) - np.repeat(firsts[1:], counts)
    return CheckedStep(
        step.number,
        firsts,
        lengths,
        [sequence.rope_length for sequence in step.sequences],
        _tables(step.sequences, ends, indices, counts, limits),
        [sequence.states for sequence in step.sequences],
        _positions(step.positions, indices, firsts, max(ends), limits),
        _attention_ends(step.attention_ends, indices, token_ends),
        step.wanted,
        step.scored,
        _token_ids(step.tokens, total, limits),
        _layer_inputs(step.layer_inputs, total, limits),
        _images(step, total, limits),
    )


def _wrong(field: str, text: str) -> Damaged:
    return Damaged(f"a step's {field!r} contradicts this worker's part of the model", where=text)


def _array(field: str, data: bytes, dtype: type[Any]) -> NDArray[Any]:
    """A copy that is aligned, and may be written."""
    if len(data) % np.dtype(dtype).itemsize:
        raise _wrong(field, f"{len(data)} bytes")
    return np.frombuffer(data, dtype).copy()


def _check_states(
    sequences: Sequence[SequenceStep], limits: StepLimits, known: Mapping[int, KnownState]
) -> None:
    """Each sequence has a state for each of these caches, of the tokens before, and no other's."""
    count = len(limits.state_caches)
    for sequence in sequences:
        if len(sequence.states) != count:
            raise _wrong("states", f"{len(sequence.states)} of {count} caches")
        for id, cache in zip(sequence.states, limits.state_caches, strict=True):
            if known.get(id) != (cache, sequence.start):
                text = f"{known.get(id)} is not cache {cache} after {sequence.start}"
                raise _wrong("states", text)
    distinct = {id for sequence in sequences for id in sequence.states}
    if count and len(distinct) != count * len(sequences):
        raise _wrong("states", "one belongs to two sequences")


def _check_rows(step: Step, total: int) -> None:
    """A row may be scored and wanted."""
    wanted = step.wanted
    if wanted and not 0 <= min(wanted) <= max(wanted) < total:
        raise _wrong("wanted", f"rows {min(wanted)} to {max(wanted)} of {total}")
    if not 0 <= step.scored <= len(wanted) <= 2 * total:
        raise _wrong("scored", f"{step.scored} of {len(wanted)} rows")


def _tables(
    sequences: Sequence[SequenceStep],
    ends: Sequence[int],
    indices: _Ints,
    counts: NDArray[np.int32],
    limits: StepLimits,
) -> list[CheckedTable]:
    """The tables of all groups; other workers may have the caches of some of them."""
    groups, size = len(sequences[0].tables), limits.block_tokens
    if any(len(sequence.tables) != groups for sequence in sequences):
        raise _wrong("tables", "sequences have tables of different groups")
    if groups <= max(limits.group_blocks, default=-1):
        raise _wrong("tables", f"{groups} of {1 + max(limits.group_blocks)} groups")
    blocks = [blocks_of(end, size) for end in ends]
    longest = max(blocks)
    if longest * len(blocks) > _MOST_TABLE_BLOCKS:
        raise _wrong("tables", f"{longest} blocks in {len(blocks)} sequences")
    rows, columns = np.repeat(np.arange(len(ends)), counts), indices // size
    inside = None if min(blocks) == longest else np.arange(longest) < np.array(blocks)[:, None]
    tables = []
    for group in range(groups):
        rows_of_all = zip([sequence.tables[group] for sequence in sequences], blocks, strict=True)
        # A coordinator may have reserved more.
        needed = [row[: 4 * count] for row, count in rows_of_all]
        numbers = _array("tables", b"".join(needed), np.int32)
        if len(numbers) != sum(blocks):
            raise _wrong("tables", f"{len(numbers)} of {sum(blocks)} blocks")
        most = limits.group_blocks.get(group, _MOST_LENGTH)
        if not 0 <= int(numbers.min()) <= int(numbers.max()) < most:
            raise _wrong("tables", f"blocks {numbers.min()} to {numbers.max()} of {most}")
        if inside is None:
            table = numbers.reshape(len(blocks), longest)
        else:
            table = np.zeros((len(blocks), longest), np.int32)
            table[inside] = numbers
        slots = table[rows, columns].astype(np.int64) * size + indices % size
        tables.append(CheckedTable(table, slots))
    return tables


def _positions(
    data: bytes, indices: _Ints, firsts: NDArray[np.int32], longest: int, limits: StepLimits
) -> _Ints:
    """(N) or (3, N). In one dimension the tokens of a sequence have adjacent positions."""
    positions, total = _array("positions", data, np.int64), len(indices)
    if len(positions) not in ((total, 3 * total) if limits.has_axes else (total,)):
        raise _wrong("positions", f"{len(positions)} of {total} tokens")
    first = limits.first
    most = 2 * longest + _MOST_AHEAD
    if first is not None and first.positions is not None:
        most = min(most, first.positions)
    if not 0 <= int(positions.min()) <= int(positions.max()) < most:
        raise _wrong("positions", f"{positions.min()} to {positions.max()} of {most}")
    if len(positions) != total:
        return positions.reshape(3, total)
    ahead = positions - indices
    if (ahead != np.repeat(ahead[firsts[:-1]], np.diff(firsts))).any():
        raise _wrong("positions", "those of a sequence are not adjacent")
    return positions


def _attention_ends(data: bytes | None, indices: _Ints, ends: _Ints) -> _Ints | None:
    """Each token attends to itself, and to none after the last one of its sequence."""
    if data is None:
        return None
    attended = _array("attention_ends", data, np.int64)
    if len(attended) != len(indices):
        raise _wrong("attention_ends", f"{len(attended)} of {len(indices)} tokens")
    if (attended < indices).any() or (attended >= ends).any():
        raise _wrong("attention_ends", f"{attended.min()} to {attended.max()} are out of range")
    return attended


def _token_ids(data: bytes, total: int, limits: StepLimits) -> _Ints | None:
    """(N), for the first layers alone."""
    if limits.first is None:
        _require_none("tokens", data)
        return None
    token_ids, vocabulary = _array("tokens", data, np.int64), limits.first.vocabulary
    is_complete = len(token_ids) == total
    if not is_complete or int(token_ids.min()) < 0 or int(token_ids.max()) >= vocabulary:
        raise _wrong("tokens", f"{len(token_ids)} of {total}, or ids outside of the vocabulary")
    return token_ids


def _layer_inputs(data: bytes, total: int, limits: StepLimits) -> NDArray[np.float32] | None:
    if not limits.input_bytes:
        _require_none("layer_inputs", data)
        return None
    if len(data) != total * limits.input_bytes:
        raise _wrong("layer_inputs", f"{len(data)} bytes for {total} tokens")
    return _array("layer_inputs", data, np.float32)


def _images(step: Step, total: int, limits: StepLimits) -> list[CheckedImage]:
    """For the first layers alone; no row belongs to two images."""
    first = limits.first
    if first is None:
        _require_none("images", step.images)
        return []
    images = []
    used = np.zeros(total, np.bool_)
    for image in step.images:
        rows = _array("rows", image.rows, np.int64)
        if not 0 < len(rows) <= total or not 0 <= int(rows.min()) <= int(rows.max()) < total:
            raise _wrong("rows", f"{len(rows)} rows of an image among {total} tokens")
        if (np.diff(rows) <= 0).any() or used[rows].any():
            raise _wrong("rows", "those of images do not ascend, or belong to two of them")
        parts, rest = divmod(image.width, first.hidden)
        if rest or not 0 < parts <= 1 + first.layers:
            raise _wrong("width", f"{image.width} features for a hidden size of {first.hidden}")
        used[rows] = True
        images.append(CheckedImage(rows, image.width))
    return images


def _require_none(field: str, values: Sequence[Any]) -> None:
    if values:
        raise _wrong(field, "belongs to the first layers")
