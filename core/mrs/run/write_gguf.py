"""Write a model to a GGUF file: `mrs quantize -o FILE.gguf`."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrs.architecture.description import Description
from mrs.architecture.gguf_layout import GgufTensor, gguf_layout
from mrs.errors import NotReadable, Unsupported, UsageError
from mrs.events import DISK, LoadProgress, OnProgress
from mrs.formats import FORMATS, Format
from mrs.process.files import PUBLIC, Staging, replace_file
from mrs.quantization.gguf_mixes import FILE_TYPES, Place, kind_of, layer_of, mix_name, mixed_format
from mrs.quantization.isq import isq_format, parse_isq
from mrs.quantization.storage import StorageRules, isq_names, isq_rules, quantization, resolve_dtype
from mrs.source.address import model_name
from mrs.source.checkpoint import Checkpoint
from mrs.source.gguf_encode import NewTensor, encoded_metadata, header
from mrs.source.gguf_shards import Shard, shards
from mrs.source.reader import LocalFile
from mrs.weights.binding import Parameter, Piece

if TYPE_CHECKING:
    from torch import Tensor

    from mrs.engine.column_importance import Loader
    from mrs.layers.rope.spec import Rope
    from mrs.load.gguf_writer import Read
    from mrs.request import RunRequest
    from mrs.run.measured_formats import Budget, Chosen
    from mrs.source.weights import Weights

_logger = logging.getLogger(__name__)

#: Roles of the matrices that are quantized.
_MATRICES = ("matrix", "embedding", "head")
_FLOAT = FORMATS["F32"]
#: The version of the block formats, which all files with quantized weights name.
_QUANTIZATION_VERSION = 2
#: Keys of a GGUF file that describe how it was cut and stored, not the model.
_OF_THE_FILE = ("split.", "general.alignment", "general.file_type")


def quantize_gguf(
    request: RunRequest,
    target: Path,
    on_progress: OnProgress | None = None,
    loader: Loader | None = None,
    budget: Budget | None = None,
    on_chosen: Callable[[Chosen], None] = lambda chosen: None,
    max_shard_bytes: int | None = None,
) -> tuple[Path, ...]:
    """Write the model of a request to a GGUF file, which is replaced as a whole; returns its path.

    If the file would be larger than `max_shard_bytes`, it is written in shards.

    Weights are quantized as the request says, or stay as they are. With a `budget` each matrix has
    the format that is chosen by measured loss, of which `on_chosen` is told. A `loader` of the
    request is needed then, and if it asks for the importance of columns. Memory is needed for one
    tensor at a time. Raises UsageError, Unsupported and NotReadable.
    """
    from mrs.architecture.describe import describe
    from mrs.engine.column_importance import column_importance
    from mrs.source.find import fetch, open_checkpoint

    def report(progress: LoadProgress) -> None:
        if on_progress is not None:
            on_progress(progress)

    checkpoint = open_checkpoint(request.source)
    _check(request, checkpoint)
    description = describe(checkpoint, request.arch)
    contents = _contents(request, checkpoint, description)  # may refuse: before the download
    checkpoint = fetch(checkpoint, lambda done, total: report(LoadProgress(DISK, done, total)))
    _check_target(target, checkpoint)
    metadata = _metadata(request, checkpoint, description, contents)
    importance: Mapping[str, Tensor] = {}
    if loader is not None:
        loader.planner.checkpoint = checkpoint
    if budget is not None:
        from mrs.run.measured_formats import choose_formats

        assert loader is not None
        header_bytes = len(header(metadata, contents.new))  # the same for any formats
        chosen = choose_formats(loader, contents.tensors, budget, header_bytes, report)
        on_chosen(chosen)
        importance = chosen.importance
        contents = contents.with_formats({n: each.format for n, each in chosen.options.items()})
        metadata |= _kind(request, contents)
    elif loader is not None:
        importance = column_importance(loader, report)
    for reason, count in contents.reasons.items():
        _logger.warning("%d tensors: %s", count, reason)
    return _write(target, checkpoint, contents, metadata, report, importance, max_shard_bytes)


@dataclass(frozen=True)
class _Contents:
    """The tensors of the file, each with its format, and the keys of its architecture.

    A tensor without parameters and factors is copied. `rope` has the factors that are tensors.
    `reasons` say why so many tensors have another format than the one that was asked for.
    """

    tensors: Sequence[tuple[GgufTensor, Format]]
    metadata: Mapping[str, Any]
    reasons: Mapping[str, int]
    rope: Rope | None = None

    @property
    def new(self) -> list[NewTensor]:
        return [NewTensor(each.name, each.shape, format) for each, format in self.tensors]

    def with_formats(self, formats: Mapping[str, Format]) -> _Contents:
        """The same with other formats of the tensors of these names."""
        tensors = [(each, formats.get(each.name, format)) for each, format in self.tensors]
        return replace(self, tensors=tensors)


def _check(request: RunRequest, checkpoint: Checkpoint) -> None:
    """Raises UsageError and Unsupported for what is not written."""
    if request.vision is not None or checkpoint.source.mmproj is not None:
        raise Unsupported(
            "GGUF files of vision towers are not written",
            hint="plain -m ID writes the language model",
        )
    if request.adapters:
        raise Unsupported(
            "GGUF files of models with adapters are not written",
            hint="merge the adapters with peft, and name the result",
        )
    for isq in isq_names(request.isq, isq_rules(request.topology)):
        if parse_isq(isq).ggml_type is None:
            raise Unsupported(
                f"--isq {isq} is not a type of GGUF files",
                hint="use one such as q4k, Q4_K_M, q8_0 or mxfp4",
            )
    if request.source.tokenizer_json and checkpoint.container == "gguf":
        raise Unsupported(
            "the tokenizer of a GGUF file is not replaced",
            hint="leave out -t: the new file has the tokenizer of the old one",
        )


def _check_target(target: Path, checkpoint: Checkpoint) -> None:
    """Raises UsageError if the file is one that the model is read from, or its place is none."""
    if target.is_dir():
        raise UsageError("it is a folder", where=str(target), hint="name a file: -o FILE.gguf")
    if not target.parent.is_dir():
        raise UsageError("there is no such folder", where=str(target.parent), hint="make it first")
    sources = (checkpoint.local_path(file.name) for file in checkpoint.files)
    if target.exists() and any(target.samefile(path) for path in sources):
        raise UsageError(
            "the model is read from this file", where=str(target), hint="give another one with -o"
        )


def _contents(request: RunRequest, checkpoint: Checkpoint, description: Description) -> _Contents:
    isq, topology = quantization(request, description.parameters)
    stored = Counter(tensor.format for tensor in checkpoint.tensors.values())
    dense = resolve_dtype(request.dtype, stored)
    rules = StorageRules(dense, isq, topology=isq_rules(topology))
    if checkpoint.container == "gguf":
        tensors = tuple(_stored_tensors(checkpoint, description.parameters))
        formats = _Formats(request, checkpoint, description, rules, tensors)
        return _Contents([(each, formats.of(each)) for each in tensors], {}, formats.reasons)
    layout = gguf_layout(checkpoint, description, request.arch)
    formats = _Formats(request, checkpoint, description, rules, layout.tensors)
    chosen = [(each, formats.of(each)) for each in layout.tensors]
    return _Contents(chosen, layout.metadata, formats.reasons, layout.rope)


def _stored_tensors(
    checkpoint: Checkpoint, parameters: Sequence[Parameter]
) -> Iterator[GgufTensor]:
    """The tensors of a GGUF file; those that are no matrices have no parameters: they are copied"""
    matrices: dict[str, list[tuple[int, Parameter]]] = {}
    for parameter in parameters:
        if parameter.role in _MATRICES:
            for piece in parameter.pieces:
                first = 0 if piece.rows is None else piece.rows.start
                part = parameter._replace(pieces=(piece,))
                matrices.setdefault(piece.tensor, []).append((first, part))
    for name, info in checkpoint.tensors.items():
        parts = [part for _, part in sorted(matrices.get(name, ()), key=lambda each: each[0])]
        if not parts:
            yield GgufTensor(name, info.shape, "vector", ())
            continue
        if not _is_in_order(parts):
            parts = [parts[0]._replace(name=name, shape=info.shape, pieces=(Piece(name),))]
        yield GgufTensor(name, info.shape, parts[0].role, tuple(parts))


def _is_in_order(parts: Sequence[Parameter]) -> bool:
    """Whether the rows of parameters follow each other; else the tensor is read as a whole."""
    pieces = [part.pieces[0] for part in parts]
    if len(pieces) == 1 and pieces[0].rows is None:
        return not pieces[0].transposed
    ranges = [piece.rows for piece in pieces if piece.rows is not None]
    starts = [0, *(each.stop for each in ranges)]
    return all(each.step == 1 for each in ranges) and starts[:-1] == [r.start for r in ranges]


class _Formats:
    """The format of each tensor in the file."""

    def __init__(
        self,
        request: RunRequest,
        checkpoint: Checkpoint,
        description: Description,
        rules: StorageRules,
        tensors: Sequence[GgufTensor],
    ) -> None:
        self._mix, self._rules = mix_name(request.isq), rules
        self._checkpoint, self._spec = checkpoint, description.spec
        kinds = [each.name for each in tensors if each.parameters and each.role == "matrix"]
        #: Why tensors have another format than the one that was asked for, and how many.
        self.reasons = Counter[str]()
        self._of_kind: dict[str, list[str]] = {}
        for name in sorted(kinds, key=layer_of):
            self._of_kind.setdefault(kind_of(name), []).append(name)

    def of(self, tensor: GgufTensor) -> Format:
        if not tensor.parameters:
            info = self._checkpoint.tensors.get(tensor.name)
            return _FLOAT if tensor.factors or info is None else info.format
        dense = self._rules.dense
        if tensor.role not in _MATRICES:
            return _FLOAT if tensor.role == "vector" else dense
        first = tensor.parameters[0]
        stored = self._stored(tensor)
        isq = self._rules.of(first).isq
        if isq is None:
            return stored if stored.is_quantized and stored.ggml_type is not None else dense
        role, wanted = tensor.role, isq
        if self._mix is not None and isq == self._rules.isq:
            role, wanted = "matrix", self._mixed(tensor, isq)
        format, reason = isq_format(role, tensor.shape, wanted, stored)
        if reason is not None:
            self.reasons[reason] += 1
        return format if format.is_quantized and format.ggml_type is not None else dense

    def _stored(self, tensor: GgufTensor) -> Format:
        """The format of the model's files; the dense one if parts of a tensor differ."""
        headers, formats = self._checkpoint.tensors, set()
        for parameter in tensor.parameters:
            for piece in parameter.pieces:
                if piece.packed is not None:
                    formats.add(piece.packed.layout(headers, parameter.columns).format)
                elif piece.transposed:
                    formats.add(self._rules.dense)
                else:
                    formats.add(headers[piece.tensor].format)
        return formats.pop() if len(formats) == 1 else self._rules.dense

    def _mixed(self, tensor: GgufTensor, usual: Format) -> Format:
        """The format in a mix, in which the head has more bits than the embedding."""
        assert self._mix is not None
        if tensor.role == "head" or (tensor.role == "embedding" and self._spec.tied_head):
            return FORMATS["Q6_K"]
        if tensor.role == "embedding":
            return usual
        alike = self._of_kind[kind_of(tensor.name)]
        routing = next((r for each in self._spec.layers if (r := each.feed_forward.routing)), None)
        experts = routing.experts if routing else 0
        place = Place(alike.index(tensor.name), len(alike), experts)
        return mixed_format(self._mix, tensor.name, usual, place)


def _metadata(
    request: RunRequest, checkpoint: Checkpoint, description: Description, contents: _Contents
) -> dict[str, Any]:
    """All metadata of the file, whose files are on this machine."""
    if checkpoint.container == "gguf":
        first = checkpoint.local_path(checkpoint.files[0].name)
        old = encoded_metadata(LocalFile(first), first.name)
        kept = {key: each for key, each in old.items() if not key.startswith(_OF_THE_FILE)}
        return {**kept, **_kind(request, contents), **_given_template(request)}
    if description.head is not None:
        _logger.warning("the draft head of the model is not written to the file")
    spec = description.spec
    arch = contents.metadata["general.architecture"]
    vocab_size = spec.vocab_size + spec.extra_tokens
    return {
        **contents.metadata,
        f"{arch}.vocab_size": vocab_size,
        "general.type": "model",
        "general.name": model_name(checkpoint.model_id),
        **_kind(request, contents),
        **_sampling(checkpoint),
        **_tokenizer(request, checkpoint, vocab_size),
    }


def _kind(request: RunRequest, contents: _Contents) -> dict[str, Any]:
    """What a file says of its formats: the mix, or the format of most of its weights."""
    formats = Counter[str]()
    for tensor, format in contents.tensors:
        if tensor.role == "matrix" or not tensor.parameters:
            formats[format.name] += format.size_bytes(tensor.shape)
    most = formats.most_common(1)[0][0] if formats else "F32"
    number = FILE_TYPES.get(mix_name(request.isq) or most)
    values = {"general.quantization_version": _QUANTIZATION_VERSION}
    return values if number is None else {**values, "general.file_type": number}


def _sampling(checkpoint: Checkpoint) -> dict[str, Any]:
    """The sampling settings that the model suggests."""
    from mrs.request.sampling import SETTINGS
    from mrs.source.suggested_sampling import suggested_sampling

    suggested = suggested_sampling(checkpoint)
    keys = {name: SETTINGS[name].gguf_key for name in suggested}
    return {key: suggested[name] for name, key in keys.items() if key}


def _tokenizer(request: RunRequest, checkpoint: Checkpoint, vocab_size: int) -> dict[str, Any]:
    from mrs.source.tokenizer_files import VOCABULARY_FILES
    from mrs.text.gguf_vocabulary import tokenizer_metadata
    from mrs.text.text_processor import read_text_processor

    if all(checkpoint.read_bytes(name) is None for name in VOCABULARY_FILES):
        _logger.warning("the model has no tokenizer, and neither has the file")
        return {"tokenizer.ggml.model": "none"}
    processor = read_text_processor(
        checkpoint, chat_template=request.chat_template, jinja_explicit=request.jinja_explicit
    )
    return tokenizer_metadata(processor, vocab_size)


def _given_template(request: RunRequest) -> dict[str, Any]:
    """The chat template that the user gives instead of that of a GGUF file."""
    from mrs.text.template import read_template_text

    path = request.jinja_explicit or request.chat_template
    return {} if path is None else {"tokenizer.chat_template": read_template_text(path)}


def _write(
    target: Path,
    checkpoint: Checkpoint,
    contents: _Contents,
    metadata: Mapping[str, Any],
    report: OnProgress,
    importance: Mapping[str, Tensor],
    most_bytes: int | None,
) -> tuple[Path, ...]:
    """Write one file, or the shards of which none is larger than `most_bytes`.

    None has its name until all are written, and the first gets it last: without it nothing loads.
    """
    from mrs.load.gguf_writer import written
    from mrs.source.weights import Weights

    new = contents.new
    files = shards(target.name, metadata, new, most_bytes)
    paths = tuple(target.with_name(each.name) for each in files)
    for path in paths:
        _check_target(path, checkpoint)
    total_bytes = sum(len(each.header) for each in files) + sum(each.padded_bytes for each in new)
    done_bytes = 0

    def add(size_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes += size_bytes
        report(LoadProgress(DISK, done_bytes, total_bytes))

    with Weights(checkpoint) as weights:
        reads = [
            _read(each, format, contents.rope, weights, importance)
            for each, format in contents.tensors
        ]

        def write(path: Path, shard: Shard) -> None:
            tensors = zip(new[shard.tensors], reads[shard.tensors], strict=True)
            replace_file(path, written(shard.header, tensors, add), PUBLIC)

        try:
            if len(files) == 1:
                write(target, files[0])
                return paths
            with Staging(target.parent, target.name) as staging:
                for shard in files:
                    write(staging.path(shard.name), shard)
                paths[0].unlink(missing_ok=True)
                staging.publish(each.name for each in reversed(files))
        except OSError as error:
            reason = error.strerror or ""
            raise NotReadable(
                f"cannot write {target.name}", where=str(target), hint=reason
            ) from error
    return paths


def _read(
    tensor: GgufTensor,
    format: Format,
    rope: Rope | None,
    files: Weights,
    importance: Mapping[str, Tensor],
) -> Read:
    """What makes the bytes of a tensor."""
    from mrs.load.gguf_writer import converted, copied, rope_factors

    if tensor.factors:
        assert rope is not None
        return partial(rope_factors, tensor.factors, rope)
    if not tensor.parameters:
        return partial(copied, files.checkpoint.tensors[tensor.name], files)
    return partial(converted, tensor, format, files, importance)
