"""Decode any stored format to numbers and encode numbers to the formats we can write.

Both work in chunks, so that the scratch stays bounded whatever the size of the tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from mrs.errors import Unsupported
from mrs.formats import Format
from mrs.kernels.encode import native_encoder
from mrs.quants import fp4, iq, k_encode, k_quants, legacy, plain, ternary
from mrs.sizes.quantization import coded_weights

_Blocks = Callable[[torch.Tensor], torch.Tensor]
_Step = Callable[[torch.Tensor, torch.Tensor], object]

#: From blocks (N, block_bytes) to float32 (N, block_elements).
DECODERS: dict[str, _Blocks] = {
    **legacy.DECODERS,
    **k_quants.DECODERS,
    **iq.DECODERS,
    **ternary.DECODERS,
    **fp4.DECODERS,
}

#: From float32 (N, block_elements) to blocks (N, block_bytes).
ENCODERS: dict[str, _Blocks] = {**legacy.ENCODERS, **k_encode.ENCODERS}


def _convert(source: torch.Tensor, target: torch.Tensor, elements: int, convert: _Step) -> None:
    """`convert(source, target)` for some rows at a time, which have `elements` numbers each."""
    rows = coded_weights(on_cpu=source.device.type == "cpu") // elements
    chunks = list(zip(torch.split(source, rows), torch.split(target, rows), strict=True))
    threads = torch.get_num_threads() if source.device.type == "cpu" else 1
    if threads == 1 or len(chunks) == 1:
        for some, into in chunks:
            convert(some, into)
        return
    inference = torch.is_inference_mode_enabled()  # of this thread: others would not know

    def convert_in_thread(chunk: tuple[torch.Tensor, torch.Tensor]) -> None:
        with torch.inference_mode(inference):
            convert(*chunk)

    # A thread a chunk, each without helpers, never waits for others: torch's own threads meet
    # after every operation, which on a busy machine costs far more than the operation.
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for _ in pool.map(convert_in_thread, chunks):
                pass
    finally:
        torch.set_num_threads(threads)  # or threads that start later would have one, too


def _decoder(format: Format) -> _Blocks:
    if format.name in plain.DTYPES:
        return lambda blocks: plain.view_plain(blocks, format.name)
    if (decoder := DECODERS.get(format.name)) is None:
        raise Unsupported(f"cannot decode {format.name} weights")
    return decoder


def _encoder(format: Format, device: torch.device) -> _Step:
    """From numbers (N, block_elements) of any float type into blocks (N, block_bytes)."""
    if (encoder := ENCODERS.get(format.name)) is None:
        raise Unsupported(f"cannot quantize to {format.name}")
    native = native_encoder(format.name) if device.type == "cpu" else None
    return native or (lambda numbers, blocks: blocks.copy_(encoder(numbers.float())))


def decode(
    blocks: torch.Tensor, format: Format, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """The numbers that bytes of a format stand for, on the device where the bytes lie.

    `blocks`: uint8 (..., row_bytes) -> (..., row_elements) of `dtype`, computed in float32.
    Errors: Unsupported for a format that has no decoder; ValueError if rows cut a block.
    """
    decoder = _decoder(format)
    if not format.is_quantized:
        return decoder(blocks).to(dtype)
    decoded = torch.empty(_decoded_shape(blocks, format), dtype=dtype, device=blocks.device)
    _convert(
        blocks.reshape(-1, format.block_bytes),
        decoded.view(-1, format.block_elements),
        format.block_elements,
        lambda some, into: into.copy_(decoder(some)),
    )
    return decoded


def _decoded_shape(blocks: torch.Tensor, format: Format) -> tuple[int, ...]:
    *outer, row_bytes = blocks.shape
    if row_bytes % format.block_bytes:
        raise ValueError(f"rows of {row_bytes} bytes cut {format.name} blocks")
    return (*outer, row_bytes // format.block_bytes * format.block_elements)


def encode(weights: torch.Tensor, format: Format) -> torch.Tensor:
    """Quantize rows of weights, on the device where they lie.

    `weights`: float (..., row_elements) -> uint8 (..., row_bytes).
    Errors: Unsupported for a format that has no encoder; ValueError if rows cut a block.
    """
    if format.name in ("F32", "F16", "BF16"):
        return weights.to(plain.DTYPES[format.name]).contiguous().view(torch.uint8)
    encoder = _encoder(format, weights.device)
    *outer, row_elements = weights.shape
    row_bytes = format.size_bytes((row_elements,))
    encoded = torch.empty(*outer, row_bytes, dtype=torch.uint8, device=weights.device)
    _convert(
        weights.reshape(-1, format.block_elements),
        encoded.view(-1, format.block_bytes),
        format.block_elements,
        encoder,
    )
    return encoded


def requantize(blocks: torch.Tensor, stored: Format, wanted: Format) -> torch.Tensor:
    """The weights that rows of a format stand for, quantized to another, some at a time.

    `blocks`: uint8 (..., row_bytes) -> uint8 (..., row_bytes of `wanted`). Errors as in `decode`
    and `encode`.
    """
    if not stored.is_quantized:
        return encode(_decoder(stored)(blocks), wanted)
    decoder, encoder = _decoder(stored), _encoder(wanted, blocks.device)
    *outer, row_elements = _decoded_shape(blocks, stored)
    row_bytes = wanted.size_bytes((row_elements,))
    encoded = torch.empty(*outer, row_bytes, dtype=torch.uint8, device=blocks.device)
    # Blocks hold powers of two: the larger ones are whole numbers of the smaller ones.
    elements = max(stored.block_elements, wanted.block_elements)

    def convert(some: torch.Tensor, into: torch.Tensor) -> None:
        numbers = decoder(some.reshape(-1, stored.block_bytes))
        encoder(numbers.view(-1, wanted.block_elements), into.view(-1, wanted.block_bytes))

    _convert(
        blocks.reshape(-1, stored.size_bytes((elements,))),
        encoded.view(-1, wanted.size_bytes((elements,))),
        elements,
        convert,
    )
    return encoded
