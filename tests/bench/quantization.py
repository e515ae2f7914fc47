"""What each format of `--isq` costs in quality, beside llama.cpp's quantizer on the same weights.

    python tests/bench/quantization.py [--formats q4k q8_0 …] [--tokens 10000]

For the demo model and the replies of chats that it was not trained on: the relative
root-mean-square error of the quantized matrices, the perplexity, and how often the most likely
next token is that of the full-precision model. Both quantizers' blocks run through the same
kernels. llama.cpp's columns need llama-cpp-python and are left out without it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

import mrs.demo
from demo_training.text.fit import Recipe
from demo_training.text.held_out import held_out_chats
from demo_training.text.vocabulary import encode_chats
from mrs.architecture.describe import describe
from mrs.architecture.description import Description
from mrs.formats import FORMATS, Format
from mrs.kernels.cpu.library import native_library
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.load.load import load_weights
from mrs.model.batch import SequenceInput, forward_batch
from mrs.model.decoder import Decoder
from mrs.model.model_weights import ModelWeights
from mrs.quantization.gguf import decode, encode
from mrs.quantization.isq import isq_format, parse_isq
from mrs.quantization.matrix import DenseMatrix, Matrix
from mrs.quantization.storage import Storage
from mrs.request import ModelSource
from mrs.source.find import open_checkpoint

NAMES = ("q2k", "q3k", "q4_0", "q4_1", "q4k", "q5_0", "q5_1", "q5k", "q6k", "q8_0")

#: From weights (rows, columns) to blocks (rows, row_bytes).
Quantizer = Callable[[Tensor, Format], Tensor]


@dataclass(frozen=True)
class Chat:
    """Tokens (N,), and which of those after the first the model has to write itself (N - 1,)."""

    tokens: Tensor
    is_reply: Tensor


@dataclass(frozen=True)
class Model:
    """The demo model in full precision."""

    description: Description
    weights: dict[str, Tensor]
    chats: list[Chat]


@dataclass(frozen=True)
class Quality:
    """What a quantizer makes of the model in one format."""

    error: float
    perplexity: float
    agreement: float


def load_model(token_count: int) -> Model:
    checkpoint = open_checkpoint(ModelSource("demo", "safetensors"))
    description = describe(checkpoint)
    storage = {
        p.name: Storage(FORMATS["F32"], FORMATS["F32"].size_bytes(p.shape))
        for p in description.parameters
    }
    devices = dict.fromkeys(storage, torch.device("cpu"))
    loaded = load_weights(
        checkpoint, description.parameters, storage, devices, lambda name, size: None
    )
    weights = {}
    for parameter in description.parameters:
        if parameter.role == "vector":
            weights[parameter.name] = loaded.vector(parameter.name)
        else:
            matrix = loaded.matrix(parameter.name.removesuffix(".weight"))
            weights[parameter.name] = matrix.rows(torch.arange(matrix.shape[0]), torch.float32)
    folder = Path(mrs.demo.__file__).parent / "model"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return Model(description, weights, held_out(tokenizer, token_count))


def held_out(tokenizer: Tokenizer, token_count: int) -> list[Chat]:
    """Chats that were never trained on, until the replies have `token_count` tokens."""
    chats: list[Chat] = []
    for messages in held_out_chats(Recipe()):
        if sum(int(chat.is_reply.sum()) for chat in chats) >= token_count:
            break
        ((ids, own),) = encode_chats(tokenizer, [messages])
        chats.append(Chat(torch.tensor(ids), torch.tensor(own[1:])))
    return chats


def build(model: Model, matrices: dict[str, Matrix]) -> Decoder:
    spec = model.description.spec
    vectors = {name: weight for name, weight in model.weights.items() if name not in matrices}
    devices = [torch.device("cpu")] * len(spec.layers)
    return Decoder(spec, ModelWeights(matrices, vectors), devices, torch.float32)


@torch.inference_mode()
def log_probabilities(decoder: Decoder, chats: Sequence[Chat]) -> Tensor:
    """Of every token at the place of each token of a reply: (replies' tokens, vocab)."""
    parts = []
    for chat in chats:
        count = len(chat.tokens)
        cache, rows = decoder.new_cache(count, count), chat.is_reply.nonzero()[:, 0].tolist()
        fed = SequenceInput(cache, chat.tokens.tolist(), logits_rows=rows)
        logits = decoder.forward(forward_batch([fed]), [cache])
        parts.append(logits.log_softmax(-1))
    return torch.cat(parts)


def perplexity(log_probs: Tensor, chats: Sequence[Chat]) -> float:
    replies = torch.cat([chat.tokens[1:][chat.is_reply] for chat in chats])
    return float(log_probs.gather(1, replies[:, None]).mean().neg().exp())


def quantized(model: Model, isq: Format, quantizer: Quantizer) -> tuple[dict[str, Matrix], float]:
    """The matrices in a format, and their relative root-mean-square error."""
    matrices: dict[str, Matrix] = {}
    error = total = 0.0
    for parameter in model.description.parameters:
        if parameter.role == "vector":
            continue
        weight = model.weights[parameter.name]
        kept, _ = isq_format(parameter.role, parameter.shape, isq, FORMATS["BF16"])
        blocks = quantizer(weight, kept)
        decoded = decode(blocks, kept)
        error += float((decoded - weight).double().square().sum())
        total += float(weight.double().square().sum())
        if native_library() is not None:
            packed = PackedMatrix(kept.name, *weight.shape)
            packed.fill(blocks)
            matrices[parameter.name] = packed
        else:
            matrices[parameter.name] = DenseMatrix(decoded)
    return matrices, (error / total) ** 0.5


def measure(model: Model, isq: Format, quantizer: Quantizer, reference: Tensor) -> Quality:
    matrices, error = quantized(model, isq, quantizer)
    log_probs = log_probabilities(build(model, matrices), model.chats)
    same = log_probs.argmax(-1) == reference.argmax(-1)
    return Quality(error, perplexity(log_probs, model.chats), float(same.float().mean()))


def llama_cpp_quantizer() -> Quantizer | None:
    sys.path.append(str(Path(__file__).parents[1] / "quantization"))
    from llama_cpp_quantizer import open_quantizer

    try:
        quantize = open_quantizer()
    except ImportError:
        return None
    return lambda weight, kept: torch.from_numpy(quantize(weight.numpy(), kept.name))


def report(model: Model, names: Sequence[str]) -> None:
    full = {
        name: DenseMatrix(weight) for name, weight in model.weights.items() if weight.dim() == 2
    }
    reference = log_probabilities(build(model, dict(full)), model.chats)
    full_perplexity = perplexity(reference, model.chats)
    print(f"{len(reference)} tokens of replies; full precision: perplexity {full_perplexity:.4f}")
    theirs = llama_cpp_quantizer()
    columns = f"{'error':>9}{'perplexity':>12}{'agreement':>11}"
    print(f"{'':6}{columns}" + (f"   llama.cpp:{columns}" if theirs else ""))
    for name in names:
        isq = parse_isq(name)
        line = f"{name:6}"
        for quantizer in (encode, theirs):
            if quantizer is None:
                continue
            got = measure(model, isq, quantizer, reference)
            line += " " * 13 if quantizer is theirs else ""
            line += f"{got.error:9.5f}{got.perplexity:12.4f}{got.agreement:11.2%}"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--formats", nargs="*", default=NAMES)
    parser.add_argument("--tokens", type=int, default=10_000)
    arguments = parser.parse_args()
    report(load_model(arguments.tokens), arguments.formats)


if __name__ == "__main__":
    main()
