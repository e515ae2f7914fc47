"""Computes a text with a reference model and with one setting after another, and compares.

Of the reference, only the hidden states before its head are kept, in a file: a row of them has a
few kB, the logits that they make up to 1 MB. So the models are in memory one after the other, each
beside the head of the reference alone.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from mrs.errors import NotReadable, Unsupported, UsageError
from mrs.events import OnProgress
from mrs.graph.step_rows import MAX_DRAFT_ROWS
from mrs.plan.plan import Plan
from mrs.plan.report.measured_losses import MeasuredLoss, remember_loss
from mrs.quantization.isq import isq_name, parse_isq
from mrs.request import ActivationBits, CacheType, RunRequest
from mrs.run.evaluation import summary, window_file
from mrs.run.evaluation.window_file import WindowFile
from mrs.run.evaluation.windows import Windows, Work, read_windows
from mrs.run.model_loader import ModelLoader
from mrs.run.planned_model import no_report

#: Logits of the reference that are made at a time.
_LOGITS = 1 << 24
#: Float64 values for each logit of a piece that is compared.
_COMPARED_BYTES = 5 * 8
#: Values of a position with a reference, and without: see `summary`.
_COLUMNS = {True: 4, False: 1}
EXACT = "exact"


class Setting(NamedTuple):
    """A way to compute the model: a format of `--isq`, or None, and a type of keys and values.

    Activations have so many significant bits.
    """

    isq: str | None
    cache_type: CacheType
    activations: ActivationBits = 8

    @property
    def name(self) -> str:
        """For people; what is not the default is named."""
        parts = ["as it is" if self.isq is None else self.isq]
        if self.activations > 8:
            parts.append(f"{self.activations}-bit activations")
        if self.cache_type != "auto":
            parts.append(self.cache_type)
        return ", ".join(parts)


class Step(NamedTuple):
    """`done` of `total` windows of all models are computed; the next is one of `model`."""

    model: str
    done: int
    total: int


OnStep = Callable[[Step], None]


@dataclass(frozen=True)
class Result:
    """What was found of a setting; `divergence` is None without a reference."""

    setting: Setting
    weight_bytes: int
    perplexity: summary.Figure
    divergence: summary.Divergence | None

    def to_json(self) -> dict[str, Any]:
        found = self.divergence
        return {
            "isq": self.setting.isq,
            "cache_type": self.setting.cache_type,
            "activations": self.setting.activations,
            "weight_bytes": self.weight_bytes,
            "perplexity": self.perplexity._asdict(),
            "perplexity_change": None if found is None else found.change._asdict(),
            "same_top_token": None if found is None else found.same._asdict(),
            "divergence_nats": None
            if found is None
            else {
                "mean": found.mean._asdict(),
                "median": found.median._asdict(),
                "percentile_90": found.percentile_90._asdict(),
                "percentile_99": found.percentile_99._asdict(),
                "max": found.most,
            },
        }


@dataclass(frozen=True)
class Report:
    """The results of all settings, for a text of `windows`."""

    model_id: str
    parameters: int
    reference: str | None
    reference_perplexity: summary.Figure | None
    work: Work
    windows: int
    results: Sequence[Result]

    @property
    def scored_tokens(self) -> int:
        return self.windows * self.work.scored

    def to_json(self) -> dict[str, Any]:
        perplexity = self.reference_perplexity
        return {
            "model": self.model_id,
            "text": self.work.text or self.work.tokens,
            "context_tokens": self.work.context_tokens,
            "stride": self.work.stride,
            "windows": self.windows,
            "scored_tokens": self.scored_tokens,
            "reference": self.reference,
            "reference_perplexity": None if perplexity is None else perplexity._asdict(),
            "settings": [each.to_json() for each in self.results],
        }


def exact_request(request: RunRequest) -> RunRequest:
    """The same model, computed as its weights say: they, activations and caches in float32."""
    plain = replace(
        request, isq=None, imatrix=None, calibration_file=None, moqe=False, topology=None
    )
    paged = replace(request.paged, cache_type="f32")
    return replace(plain, exact=True, dtype="f32", activations=8, paged=paged)


def settings_of(request: RunRequest, cache_types: Sequence[CacheType]) -> list[Setting]:
    """Each format of the request's `isq`, separated by commas, with each cache type.

    `none` is the weights as they are. Raises UsageError.
    """
    names = [each.strip() for each in (request.isq or "none").split(",")]
    formats = [None if each == "none" else _isq(each) for each in names]
    return [
        Setting(isq, cache_type, request.activations)
        for isq in dict.fromkeys(formats)
        for cache_type in dict.fromkeys(cache_types or (request.paged.cache_type,))
    ]


def _isq(text: str) -> str:
    return isq_name(parse_isq(text).name)


class Evaluation:
    """An evaluation of a model with `settings` beside a `reference`, or without one.

    To make it reads headers and plans; `fetch` downloads, `run` computes. All raise MrsError.
    """

    def __init__(
        self,
        request: RunRequest,
        reference: RunRequest | None,
        settings: Sequence[Setting],
        work: Work,
    ) -> None:
        self.request, self.settings, self.work = request, settings, work
        #: Whether the reference is the exact model itself.
        self.is_exact = reference == exact_request(request)
        self._reference = None if reference is None else ModelLoader(_alone(reference, work))
        if self._reference is not None:
            self._require_vocabulary(self._reference)
            self._reference.plan.require_fit()
        self._models = [ModelLoader(self._asked(each)) for each in settings]
        for model in self._models:
            _require_logits(model)
            model.plan.require_fit()

    def _asked(self, setting: Setting) -> RunRequest:
        """The request of a setting, whose plan leaves room for the reference's head."""
        request = replace(
            self.request,
            isq=setting.isq,
            paged=replace(self.request.paged, cache_type=setting.cache_type),
        )
        if setting.isq is None:
            request = replace(request, imatrix=None, calibration_file=None, moqe=False)
        reserved: tuple[tuple[str, int], ...] = ()
        if self._reference is not None:
            plan = self._reference.plan
            label = plan.devices[plan.primary_device].label
            reserved = ((label, self._head_bytes),)
        return _alone(replace(request, reserved_bytes=reserved), self.work)

    @cached_property
    def _head_bytes(self) -> int:
        """Bytes of the reference's head, and of what compares its logits with those of a model."""
        if self._reference is None:
            return 0
        from mrs.model.output_head import head_parameters

        plan, spec = self._reference.plan, self._reference.planner.description.spec
        names = head_parameters(spec) & plan.storage.keys()
        logits = max(_LOGITS, spec.vocab_size) * 4
        return (
            sum(plan.storage[name].size_bytes for name in names)
            + logits
            + MAX_DRAFT_ROWS * spec.vocab_size * _COMPARED_BYTES
        )

    def _require_vocabulary(self, reference: ModelLoader) -> None:
        _require_logits(reference)
        loader = ModelLoader(_alone(replace(self.request, isq=None), self.work))
        ours = loader.planner.description.spec.vocab_size
        theirs = reference.planner.description.spec.vocab_size
        if ours != theirs:
            raise UsageError(
                f"the model has {ours:,} tokens and the reference {theirs:,}",
                where="--reference",
                hint="name a model with the same vocabulary",
            )

    def fetch(self, report: OnProgress | None = None) -> None:
        """Download what is missing, and read the text."""
        first, *others = self._models
        first.fetch(report or no_report)
        for model in others:
            model.planner.checkpoint = first.planner.checkpoint
        if self._reference is not None and self.is_exact:
            self._reference.planner.checkpoint = first.planner.checkpoint
        elif self._reference is not None:
            self._reference.fetch(report or no_report)
        self.windows = self._read(first)
        if self._reference is not None and not self.is_exact and self.work.tokens is None:
            theirs = self._read(self._reference)
            if list(theirs.ids) != list(self.windows.ids):
                raise UsageError(
                    "the reference cuts the text into other tokens",
                    where="--reference",
                    hint="name a model with the same tokenizer",
                )
        self._require_room()

    def _read(self, model: ModelLoader) -> Windows:
        from mrs.text.text_processor import read_tokenizer

        planner = model.planner
        tokenizer = read_tokenizer(planner.checkpoint)
        return read_windows(self.work, tokenizer, planner.description.spec.vocab_size)

    @property
    def models(self) -> list[tuple[str, Plan]]:
        """The models in the order in which they are computed."""
        found = [("the reference", self._reference.plan)] if self._reference is not None else []
        return found + [
            (setting.name, model.plan)
            for setting, model in zip(self.settings, self._models, strict=True)
        ]

    @property
    def planned_s(self) -> float:
        """How long the prompts take by the plans; comparing logits comes on top."""
        count, tokens = len(self.windows), self.work.context_tokens
        rates = (plan.speed.prompt_of(tokens).expected for _, plan in self.models)
        return sum(count * tokens / rate for rate in rates)

    @property
    def needed_bytes(self) -> int:
        """The most memory on all devices together, of one model beside the reference's head."""
        needed = [
            sum(each.needed_bytes for each in model.plan.breakdowns) + self._head_bytes
            for model in self._models
        ]
        if self._reference is not None:
            needed.append(sum(each.needed_bytes for each in self._reference.plan.breakdowns))
        return max(needed)

    @property
    def disk_bytes(self) -> int:
        """How large the files get that are kept until the end."""
        count, scored = len(self.windows), self.work.scored
        sizes = [(scored, _COLUMNS[self._reference is not None])] * len(self._models)
        figures = sum(window_file.size_bytes(count, shape, "f8") for shape in sizes)
        return figures + window_file.size_bytes(count, self._state_shape, "f4")

    @property
    def _state_shape(self) -> tuple[int, int]:
        if self._reference is None:
            return 0, 0
        return self.work.scored, self._reference.planner.description.spec.hidden_size

    def _require_room(self) -> None:
        import shutil

        from mrs.units import human_bytes

        folder = window_file.folder()
        place = next(each for each in (folder, *folder.parents) if each.exists())
        free = shutil.disk_usage(place).free
        if self.disk_bytes > free:
            raise UsageError(
                f"the evaluation keeps {human_bytes(self.disk_bytes)} of states, and the disk has "
                f"{human_bytes(free)}",
                where=str(folder),
                hint="lower --windows",
            )

    def run(self, on_step: OnStep = lambda step: None) -> Report:
        """Compute all that is not done yet; an interruption keeps every window that is."""
        from mrs.process.address_space import require_address_space_for_torch

        require_address_space_for_torch()
        window_file.delete_old()
        files: dict[str, WindowFile] = {}
        with ExitStack() as stack:

            def opened(name: str, shape: tuple[int, ...], dtype: str) -> WindowFile:
                """Settings that store and compute the same have one file."""
                if name not in files:
                    files[name] = stack.enter_context(window_file.window_file(name, shape, dtype))
                return files[name]

            progress = _Progress(len(self.windows) * len(self.models), on_step)
            states, key = None, ""
            if self._reference is not None:
                key = self._key(self._reference, "")
                states = opened(f"states-{key}", self._state_shape, "f4")
                self._compute_states(self._reference, states, progress)
            results, references = [], []
            for setting, model in zip(self.settings, self._models, strict=True):
                shape = self.work.scored, _COLUMNS[states is not None]
                figures = opened(f"figures-{self._key(model, key)}", shape, "f8")
                self._compute_figures(setting, model, figures, states, progress)
                values: summary.Array = np.stack(
                    [figures[index].astype("f8") for index in range(len(self.windows))]
                )
                results.append(_result(setting, model.plan, values, states is not None))
                if states is not None:
                    references.append(summary.perplexity(values[..., summary.REFERENCE_LOSS]))
        for name in files:
            window_file.delete(name)
        facts = self._models[0].plan.model
        report = Report(
            self.request.source.model_id,
            facts.parameters,
            self._reference_name,
            references[0] if references else None,
            self.work,
            len(self.windows),
            results,
        )
        self._remember(results)
        return report

    @property
    def _reference_name(self) -> str | None:
        if self._reference is None or self.is_exact:
            return None if self._reference is None else EXACT
        return self._reference.request.source.model_id

    def _key(self, model: ModelLoader, reference: str) -> str:
        """A hash of all that decides the values of a model's windows."""
        from mrs.load.identity import model_identity

        planner = model.planner
        identity = model_identity(planner.checkpoint, model.plan, model.request)
        facts = [identity, reference, self.windows.digest, str(model.request.exact)]
        return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]

    def _compute_states(self, model: ModelLoader, states: WindowFile, progress: _Progress) -> None:
        """The hidden states (scored, hidden) of the reference before its head, of each window."""
        import torch

        from mrs.run.evaluation.compare import window_states

        progress.start("the reference", states.count)
        if states.count == len(self.windows):
            return
        decoder = model.load_decoder(no_report)[0]
        with torch.inference_mode():
            for index in range(states.count, len(self.windows)):
                states.append(window_states(decoder, self.windows[index], self.work.scored))
                progress.add()
        del decoder
        gc.collect()

    def _compute_figures(
        self,
        setting: Setting,
        model: ModelLoader,
        figures: WindowFile,
        states: WindowFile | None,
        progress: _Progress,
    ) -> None:
        """The values (scored, columns) of each window of a model, see `summary`."""
        import torch

        from mrs.run.evaluation.compare import ReferenceLogits, reference_head, window_values

        progress.start(setting.name, figures.count)
        if figures.count == len(self.windows):
            return
        head = None
        if states is not None and self._reference is not None:
            head = reference_head(self._reference)
        decoder = model.load_decoder(no_report)[0]
        with torch.inference_mode():
            for index in range(figures.count, len(self.windows)):
                theirs = None
                if head is not None and states is not None:
                    theirs = ReferenceLogits(head, states[index], _LOGITS)
                values = window_values(decoder, self.windows[index], self.work.scored, theirs)
                if not np.isfinite(values).all():
                    raise NotReadable(
                        "the model's logits are not finite",
                        where=setting.name,
                        hint="its weights may be damaged, or --dtype too small for them",
                    )
                figures.append(values)
                progress.add()
        del decoder, head
        gc.collect()

    def _remember(self, results: Sequence[Result]) -> None:
        """Store what later plans say of the quality of this model's formats."""
        if not self.is_exact:
            return
        for each in results:
            usual = Setting(each.setting.isq, "auto")
            if each.divergence is not None and each.setting == usual:
                change = each.divergence.change
                loss = MeasuredLoss(change.value, change.error, each.divergence.mean.value)
                remember_loss(self._models[0].plan.model, each.setting.isq, loss)


class _Progress:
    def __init__(self, total: int, on_step: OnStep) -> None:
        self._total, self._on_step = total, on_step
        self._done, self._model = 0, ""

    def start(self, model: str, done: int) -> None:
        """A model begins, of which some windows are done already."""
        self._model = model
        self._done += done
        self._on_step(Step(model, self._done, self._total))

    def add(self) -> None:
        self._done += 1
        self._on_step(Step(self._model, self._done, self._total))


def _alone(request: RunRequest, work: Work) -> RunRequest:
    """The request of a model that computes one window at a time and nothing else."""
    return replace(
        request,
        max_seq_len=work.context_tokens,
        max_batch_size=1,
        prefix_cache_n=0,
        prefix_cache_dir=None,
        speculate="off",
        draft_model=None,
        mtp=False,
        vision=None,
        paged=replace(request.paged, pool=False),
    )


def _require_logits(model: ModelLoader) -> None:
    plan, work = model.plan, model.request.max_seq_len or 0
    if not plan.model.makes_replies:
        raise Unsupported(
            "a model that embeds or ranks texts has no perplexity", where=plan.model.model_id
        )
    if model.request.cluster is not None:
        raise Unsupported("several processes cannot evaluate a model", hint="run one process")
    if work > plan.model.context_tokens:
        raise UsageError(
            f"windows of {work} tokens are more than the {plan.model.context_tokens} that a "
            "sequence can have",
            where="--context-length",
            hint="lower it",
        )


def _result(setting: Setting, plan: Plan, values: summary.Array, has_reference: bool) -> Result:
    return Result(
        setting,
        plan.total_weight_bytes,
        summary.perplexity(values[..., summary.LOSS]),
        summary.divergence(values) if has_reference else None,
    )
