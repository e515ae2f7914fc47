"""`--imatrix` and `--calibration-file`: the importance of columns while weights are quantized."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mrs.errors import NotReadable, Unsupported, UsageError
from mrs.events import OnProgress
from mrs.process.encodings import text_of
from mrs.request import RunRequest
from mrs.source.reader import LocalFile, expanded
from mrs.units import human_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from mrs.engine.calibration_text import Observation
    from mrs.model.decoder import Decoder
    from mrs.model.model_weights import ModelWeights
    from mrs.plan.plan import Plan
    from mrs.plan.planner import Planner

_logger = logging.getLogger(__name__)

#: Larger texts are refused: one of 300 kB is usual, and takes minutes.
MAX_TEXT_BYTES = 16 << 20
#: The longest sequence of a calibration: SEQUENCE_TOKENS of `mrs.engine` and a bos token.
_TOKENS = 1025
#: Bytes of a column's sum of squares, and of its importance.
_SUM_BYTES = 12


class Loader(Protocol):
    """What a calibration needs of `ModelLoader`, and another one of the same class."""

    request: RunRequest

    def __init__(self, request: RunRequest) -> None: ...

    @property
    def planner(self) -> Planner: ...

    @property
    def plan(self) -> Plan: ...

    def load_decoder(
        self, report: OnProgress, wrap: Callable[[ModelWeights], ModelWeights]
    ) -> tuple[Decoder, ModelWeights]: ...


def check_importance(request: RunRequest) -> None:
    """Raise UsageError, Unsupported or NotReadable if the files of a request cannot be used."""
    path = request.importance_file
    assert path is not None
    if request.imatrix and request.calibration_file:
        raise UsageError("--imatrix and --calibration-file exclude each other", hint="give one")
    flag = "--imatrix" if request.imatrix else "--calibration-file"
    if request.source.uqff:
        raise UsageError(
            f"{flag} has no effect: weights in UQFF files are quantized already",
            hint="leave it out",
        )
    if request.isq is None and (request.topology is None or request.topology.of_isq is None):
        raise UsageError(f"{flag} has an effect only with --isq", hint="add --isq q4k")
    if request.cluster is not None and request.calibration_file:
        raise Unsupported(
            "several processes cannot measure the importance of columns",
            hint="give a file that has it: --imatrix",
        )
    size_bytes = LocalFile(expanded(path)).size_bytes
    if request.calibration_file and size_bytes > MAX_TEXT_BYTES:
        raise UsageError(
            f"a text of {human_bytes(size_bytes)} is too long for a calibration",
            where=path,
            hint=f"give one of up to {human_bytes(MAX_TEXT_BYTES)}; 300 kB are usual",
        )


def column_importance(loader: Loader, report: OnProgress) -> dict[str, Tensor]:
    """The importance (columns,) by parameter; empty if the request does not ask for it.

    The model's files are on this machine. Raises NotReadable and DoesNotFit.
    """
    request = loader.request
    if request.imatrix is not None:
        from mrs.load.importance import importance_by_parameter
        from mrs.source.importance_file import read_importance

        found = read_importance(request.imatrix)
        return importance_by_parameter(found, loader.planner.description, request.imatrix)
    if request.calibration_file is not None:
        return _calibrate(loader, request.calibration_file, report)
    return {}


def with_calibration(plan: Plan, loader: Loader) -> Plan:
    """The plan with one line on the memory of a calibration.

    It loads the weights as the files have them, or as Q8_0 if they do not fit, before the others.
    """
    first = first_loader(loader).plan
    needed = sum(each.needed_bytes for each in first.breakdowns)
    needed += _SUM_BYTES * sum(p.columns for p in first.parameters if len(p.shape) > 1)
    extra = max(0, needed - sum(each.needed_bytes for each in plan.breakdowns))
    line = (
        f"the calibration needs {human_bytes(needed)} while the model loads, "
        f"{human_bytes(extra)} more than afterwards"
    )
    return replace(plan, warnings=(*plan.warnings, line))


def first_loader(loader: Loader) -> Loader:
    """The loader of the model that computes the text: not quantized, or to Q8_0 if that fits."""
    topology = loader.request.topology
    devices = topology and replace(topology, rules=tuple(r for r in topology.rules if not r.isq))
    request = replace(
        loader.request,
        isq=None,
        topology=devices if devices and devices.rules else None,
        moqe=False,
        imatrix=None,
        calibration_file=None,
        draft_model=None,
        plan_file=None,
        vision=None,
        prefix_cache_n=0,
        prefix_cache_dir=None,
        max_seq_len=_TOKENS,
        max_batch_size=1,
    )
    first = type(loader)(request)
    return first if first.plan.fits else type(loader)(replace(request, isq="q8_0"))


def _calibrate(loader: Loader, path: str, report: OnProgress) -> dict[str, Tensor]:
    importance = observed(loader, path, report).observation.importance
    gc.collect()  # the unquantized weights go before the others come
    return importance


class Observed(NamedTuple):
    """A model as its files have it, its inputs over the `tokens` of a text, and its bos token."""

    decoder: Decoder
    observation: Observation
    tokens: Sequence[int]
    bos: Sequence[int]


def observed(loader: Loader, path: str, report: OnProgress) -> Observed:
    """Load the model of a loader before it is quantized, and compute a text with it."""
    from mrs.engine.calibration_text import Observation
    from mrs.text.text_processor import read_tokenizer

    file = LocalFile(expanded(path))
    text = text_of(file.read(0, file.size_bytes), str(file.path))
    first = first_loader(loader)
    first.plan.require_fit()
    first.planner.checkpoint = loader.planner.checkpoint
    tokenizer = read_tokenizer(loader.planner.checkpoint)
    tokens = tokenizer.encode(text, allow_special=False)
    if not tokens:
        raise NotReadable("the text for the calibration is empty", where=path)
    observation = Observation(first.planner.description)
    decoder = first.load_decoder(report, observation.wrap)[0]
    _logger.info("calibrating with %d tokens", len(tokens))
    bos = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    observation.read(decoder, tokens, bos)
    return Observed(decoder, observation, tokens, bos)
