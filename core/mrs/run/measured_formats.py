"""Formats that are chosen by measured loss: `mrs quantize --bits`, `--size` and `--fit`."""

from __future__ import annotations

import gc
import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mrs.architecture.gguf_layout import GgufTensor
from mrs.errors import Unsupported, UsageError
from mrs.events import DISK, LoadProgress, OnProgress
from mrs.formats import FORMATS, Format
from mrs.quantization.bit_budget import CANDIDATES, Option, choose, least_bytes
from mrs.quantization.gguf_mixes import kind_of, layer_of
from mrs.source.gguf_encode import NewTensor
from mrs.units import human_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from mrs.engine.column_importance import Loader
    from mrs.engine.sensitivity import Group
    from mrs.request import RunRequest

_logger = logging.getLogger(__name__)
_MATRICES = ("matrix", "embedding", "head")
#: Bytes of a logit and of what is made of it while two models are compared.
_LOGIT_BYTES = 6
#: Products one by one, and logits that are compared, took twice the time of a planned prompt.
_SLOWER = 2


@dataclass(frozen=True)
class Budget:
    """The most that a file may have; one of the three is given.

    `bits` for each weight of all tensors, bytes of the file, or as many bytes of weights as fit a
    `machine` beside all else that the plan counts.
    """

    bits: float | None = None
    size_bytes: int | None = None
    machine: str | None = None

    def tensor_bytes(self, loader: Loader, weights: int, header_bytes: int) -> int:
        """The bytes that all tensors may have together. Raises UsageError and DoesNotFit."""
        if self.bits is not None:
            return int(self.bits * weights / 8)
        if self.size_bytes is not None:
            return self.size_bytes - header_bytes
        from mrs.plan.report.fit import room_for_weights

        assert self.machine is not None
        return room_for_weights(self.machine, loader.planner, loader.request)


@dataclass(frozen=True)
class Chosen:
    """The option of each tensor by its name, and the importance by which it is encoded."""

    options: Mapping[str, Option]
    weights: Mapping[str, int]
    importance: Mapping[str, Tensor]

    @property
    def summary(self) -> str:
        """How many weights have which format, for people."""
        counts = Counter[str]()
        for name, each in self.options.items():
            counts[each.format.name] += self.weights[name]
        total = counts.total()
        shares = (f"{name} {count / total:.0%}" for name, count in counts.most_common())
        return f"formats of the matrices, by their weights: {', '.join(shares)}"

    def to_json(self) -> dict[str, Any]:
        formats = {name: each.format.name for name, each in self.options.items()}
        return {"formats": formats}


def check_budget(request: RunRequest) -> None:
    """Raises UsageError and Unsupported for what does not go together with a budget."""
    if request.isq is not None or request.topology is not None or request.moqe:
        raise UsageError(
            "a budget chooses the formats that --isq, --topology and -o moqe name",
            hint="give one or the other",
        )
    if request.calibration_file is None:
        raise UsageError(
            "formats are chosen by what they lose on a text, and none is given",
            hint="add --calibration-file TEXT, about 100 kB of what the model will read",
        )
    if request.cluster is not None:
        raise Unsupported("several processes cannot measure formats", hint="run one process")


def choose_formats(
    loader: Loader,
    tensors: Sequence[tuple[GgufTensor, Format]],
    budget: Budget,
    header_bytes: int,
    report: OnProgress,
) -> Chosen:
    """Formats for the matrices among `tensors`, each of which comes with its most exact one.

    The text is computed with the model as its files have it, then some tokens of it once for each
    tensor. Raises UsageError if the budget is too small.
    """
    sizes = {each.name: NewTensor(each.name, each.shape, best) for each, best in tensors}
    ways = {each.name: _formats(each, best) for each, best in tensors}
    open_ways = {each.name: each for each, _ in tensors if len(ways[each.name]) > 1}
    weights = {each.name: math.prod(each.shape) for each, _ in tensors}
    most = budget.tensor_bytes(loader, sum(weights.values()), header_bytes)
    most -= sum(size.padded_bytes for name, size in sizes.items() if name not in open_ways)
    least = {
        name: [_option(each, way, 0.0) for way in ways[name]] for name, each in open_ways.items()
    }
    if not open_ways or least_bytes(least) > most:
        raise _too_small(budget, sum(weights.values()), least_bytes(least) - most)
    found, importance = _measured(loader, open_ways, ways, report)
    chosen = choose(found, most)
    return Chosen(chosen, {name: weights[name] for name in chosen}, importance)


def _too_small(budget: Budget, weights: int, missing_bytes: int) -> UsageError:
    if budget.bits is not None:
        least = budget.bits + missing_bytes * 8 / weights
        return UsageError(
            f"{budget.bits:g} bits a weight are too few",
            where="--bits",
            hint=f"this model needs {least + 0.05:.1f}: vectors and small rows keep theirs",
        )
    where = "--size" if budget.size_bytes is not None else "--fit"
    return UsageError(
        f"the smallest formats need {human_bytes(missing_bytes)} more",
        where=where,
        hint="take a smaller model",
    )


def _formats(tensor: GgufTensor, best: Format) -> list[Format]:
    """What a tensor may be written in; `best` alone if it is no matrix, or its rows are no blocks.

    Formats with more bits than a file has of a quantized tensor would add nothing.
    """
    if tensor.role not in _MATRICES or not tensor.parameters or tensor.transposed:
        return [best]
    smaller = (
        format
        for format in map(FORMATS.__getitem__, CANDIDATES)
        if tensor.shape[-1] % format.block_elements == 0
        and format.bits_per_weight < best.bits_per_weight
    )
    return [*smaller, best]


def _option(tensor: GgufTensor, format: Format, loss: float) -> Option:
    return Option(format, NewTensor(tensor.name, tensor.shape, format).padded_bytes, loss)


def _measured(
    loader: Loader,
    tensors: Mapping[str, GgufTensor],
    formats: Mapping[str, Sequence[Format]],
    report: OnProgress,
) -> tuple[dict[str, list[Option]], Mapping[str, Tensor]]:
    """The options of each tensor with their losses, and the importance of columns."""
    from mrs.load.format_errors import Inputs, format_errors
    from mrs.load.tensor_reader import TensorReader
    from mrs.source.weights import Weights

    groups = list(_groups(tensors, loader.planner.description.spec.head_weight))
    found, observation = _sensitivities(loader, groups, report)
    slopes: dict[tuple[str, bool], float] = {
        (name, group.rows): slope
        for group, slope in zip(groups, found, strict=True)
        for name in group.tensors
    }
    importance = observation.importance
    inputs = {
        name: Inputs(squares, observation.means(name), observation.count(name))
        for name, squares in observation.squares.items()
        if observation.count(name)
    }
    del observation
    gc.collect()  # the weights in memory, which have served
    options = {}
    with Weights(loader.planner.checkpoint) as files:
        reader = TensorReader(files)
        for name, tensor in tensors.items():
            *tried, best = formats[name]
            of_products, of_rows = (slopes.get((name, rows), 0.0) for rows in (False, True))
            errors = format_errors(tensor, tried, reader, inputs, importance)
            options[name] = [
                _option(tensor, each, of_products * error.products + of_rows * error.rows)
                for each, error in zip(tried, errors, strict=True)
            ]
            options[name].append(_option(tensor, best, 0.0))
    return options, importance


def _groups(tensors: Mapping[str, GgufTensor], head: str) -> Iterator[Group]:
    """Neighbouring layers' matrices of each kind; embedding and head alone, even if they are one"""
    from mrs.engine.sensitivity import Group, windows

    parameters = {
        name: [each.name for each in tensor.parameters] for name, tensor in tensors.items()
    }
    kinds: dict[str, list[str]] = {}
    for name in sorted(tensors, key=layer_of):
        kind = name if tensors[name].role != "matrix" else kind_of(name)
        kinds.setdefault(kind, []).append(name)
    for names in kinds.values():
        is_embedding = tensors[names[0]].role == "embedding"
        if is_embedding:
            yield Group({name: parameters[name] for name in names}, rows=True)
        if not is_embedding or head in parameters[names[0]]:
            for some in windows(names):
                yield Group({name: parameters[name] for name in some}, rows=False)


def _sensitivities(
    loader: Loader, groups: Sequence[Group], report: OnProgress
) -> tuple[list[float], Any]:
    from mrs.engine.column_importance import observed
    from mrs.engine.sensitivity import SEQUENCES, TOKENS, sensitivities

    path = loader.request.calibration_file
    assert path is not None
    _say_cost(loader, len(groups), SEQUENCES * TOKENS)
    found = observed(loader, path, report)
    done = 0

    def on_pass() -> None:
        nonlocal done
        done += 1
        report(LoadProgress(DISK, done, len(groups)))

    return sensitivities(found, groups, on_pass), found.observation


def _say_cost(loader: Loader, passes: int, tokens: int) -> None:
    """Say what the measuring takes, and leave room for its logits in the plan."""
    from mrs.engine.column_importance import first_loader

    vocab_size = loader.planner.description.spec.vocab_size
    logits_bytes = tokens * vocab_size * _LOGIT_BYTES
    label = loader.plan.devices[loader.plan.primary_device].label
    reserved = (*loader.request.reserved_bytes, (label, logits_bytes))
    loader.request = replace(loader.request, reserved_bytes=reserved)
    plan = first_loader(loader).plan
    needed_bytes = logits_bytes + sum(each.needed_bytes for each in plan.breakdowns)
    seconds = _SLOWER * passes * tokens / plan.speed.prompt_of(tokens).expected
    _logger.warning(
        "the text is computed once, and %d tokens of it %d times with noise in some tensors, which "
        "takes about %.0f s; the model needs up to %s of memory meanwhile",
        *(tokens, passes, max(1, seconds), human_bytes(needed_bytes)),
    )
