"""Decode any stored format to values, and encode values to the formats that have an encoder.

Both work in chunks, so that temporary memory is bounded for tensors of any size.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from mrs.errors import Unsupported
from mrs.formats import Format
from mrs.kernels.cpu.encode import native_encoder
from mrs.quantization.gguf import (
    fp4,
    group_encode,
    grouped,
    iq,
    k_encode,
    k_quants,
    legacy,
    ternary,
    unquantized,
)
from mrs.quantization.workspace import coded_weights

_BlockConversion = Callable[[torch.Tensor], torch.Tensor]
_ConvertInto = Callable[[torch.Tensor, torch.Tensor], object]

#: From blocks (N, block_bytes) to float32 (N, block_elements).
DECODERS: dict[str, _BlockConversion] = {
    **legacy.DECODERS,
    **k_quants.DECODERS,
    **iq.DECODERS,
    **ternary.DECODERS,
    **fp4.DECODERS,
    **grouped.DECODERS,
}

#: From float32 (N, block_elements), for most formats with the importance of their columns as a
#: second argument, to blocks (N, block_bytes).
ENCODERS: dict[str, Callable[..., torch.Tensor]] = {
    **legacy.ENCODERS,
    **k_encode.ENCODERS,
    **group_encode.ENCODERS,
}
#: Formats whose encoder weighs errors by the importance of columns.
WEIGHTED = frozenset(ENCODERS) - {"Q8_0", "FP8_32", "FP8_64", "FP8_128"}


def _convert(
    source: torch.Tensor, target: torch.Tensor, elements: int, convert: _ConvertInto
) -> None:
    """Call `convert(source, target)` chunk by chunk; each row has `elements` values."""
    rows = max(coded_weights(on_cpu=source.device.type == "cpu") // elements, 1)
    chunks = list(zip(torch.split(source, rows), torch.split(target, rows), strict=True))
    threads = torch.get_num_threads() if source.device.type == "cpu" else 1
    if threads == 1 or len(chunks) == 1:
        for chunk in chunks:
            convert(*chunk)
        return
    inference = torch.is_inference_mode_enabled()  # new threads do not inherit the mode

    def convert_in_thread(chunk: tuple[torch.Tensor, torch.Tensor]) -> None:
        with torch.inference_mode(inference):
            convert(*chunk)

    # One thread for each chunk, so that threads never wait for each other: torch's own threads
    # synchronize after every operation, which on a busy machine takes longer than the operation.
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for _ in pool.map(convert_in_thread, chunks):
                pass
    finally:
        torch.set_num_threads(threads)  # otherwise threads that start later would use one, too


def _decoder(format: Format) -> _BlockConversion:
    if format.name in unquantized.DTYPES:
        return lambda blocks: unquantized.view_values(blocks, format.name)
    if (decoder := DECODERS.get(format.name)) is None:
        raise Unsupported(f"cannot decode {format.name} weights")
    return decoder


def _encoder(
    format: Format, device: torch.device, importance: torch.Tensor | None = None
) -> _ConvertInto:
    """A function from values (N, block_elements) of any float type to blocks (N, block_bytes).

    With the `importance` of columns (C,), from rows (N, C) to rows of blocks.
    """
    if (encoder := ENCODERS.get(format.name)) is None:
        raise Unsupported(f"cannot quantize to {format.name}")
    native = native_encoder(format.name, importance) if device.type == "cpu" else None
    if native is not None or importance is None:
        return native or (lambda values, blocks: blocks.copy_(encoder(values.float())))
    columns = importance.to(device).view(-1, format.block_elements)

    def encode_rows(values: torch.Tensor, blocks: torch.Tensor) -> None:
        flat = values.float().reshape(-1, format.block_elements)
        blocks.copy_(encoder(flat, columns.repeat(len(values), 1)).view_as(blocks))

    return encode_rows


def decode(
    blocks: torch.Tensor, format: Format, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Dequantize rows of blocks on their device.

    `blocks`: uint8 (..., row_bytes) -> (..., row_elements) of `dtype`, computed in float32.
    Raises Unsupported for a format without a decoder, ValueError if rows are not whole blocks.
    """
    decoder = _decoder(format)
    if not format.is_quantized:
        return decoder(blocks).to(dtype)
    decoded = torch.empty(_decoded_shape(blocks, format), dtype=dtype, device=blocks.device)
    _convert(
        blocks.reshape(-1, format.block_bytes),
        decoded.view(-1, format.block_elements),
        format.block_elements,
        lambda source, target: target.copy_(decoder(source)),
    )
    return decoded


def _decoded_shape(blocks: torch.Tensor, format: Format) -> tuple[int, ...]:
    *outer, row_bytes = blocks.shape
    if row_bytes % format.block_bytes:
        raise ValueError(f"rows of {row_bytes} bytes are not whole {format.name} blocks")
    return (*outer, row_bytes // format.block_bytes * format.block_elements)


def encode(
    weights: torch.Tensor, format: Format, importance: torch.Tensor | None = None
) -> torch.Tensor:
    """Quantize rows of weights on their device.

    `weights`: float (..., row_elements) -> uint8 (..., row_bytes). If the `importance` of columns
    (row_elements,) is given, float32 and above 0, the formats in `WEIGHTED` lower the squared
    error that it weighs.
    Raises Unsupported for a format without an encoder, ValueError if rows are not whole blocks.
    """
    if format.name in ("F32", "F16", "BF16"):
        return weights.to(unquantized.DTYPES[format.name]).contiguous().view(torch.uint8)
    importance = importance if format.name in WEIGHTED else None
    encoder = _encoder(format, weights.device, importance)
    *outer, row_elements = weights.shape
    row_bytes = format.size_bytes((row_elements,))
    encoded = torch.empty(*outer, row_bytes, dtype=torch.uint8, device=weights.device)
    elements = format.block_elements if importance is None else row_elements
    _convert(
        weights.reshape(-1, elements),
        encoded.view(-1, format.size_bytes((elements,))),
        elements,
        encoder,
    )
    return encoded


def requantize(
    blocks: torch.Tensor,
    stored: Format,
    wanted: Format,
    importance: torch.Tensor | None = None,
) -> torch.Tensor:
    """Convert rows from the format `stored` to the format `wanted`, chunk by chunk.

    `blocks`: uint8 (..., row_bytes) -> uint8 (..., row_bytes of `wanted`). Raises what `decode`
    and `encode` raise.
    """
    if not stored.is_quantized:
        return encode(_decoder(stored)(blocks), wanted, importance)
    importance = importance if wanted.name in WEIGHTED else None
    decoder, encoder = _decoder(stored), _encoder(wanted, blocks.device, importance)
    *outer, row_elements = _decoded_shape(blocks, stored)
    row_bytes = wanted.size_bytes((row_elements,))
    encoded = torch.empty(*outer, row_bytes, dtype=torch.uint8, device=blocks.device)
    # Block sizes are powers of two, so a larger block is a whole number of smaller ones.
    elements = max(stored.block_elements, wanted.block_elements)
    elements = elements if importance is None else row_elements
    at_once = wanted.block_elements if importance is None else row_elements

    def convert(source: torch.Tensor, target: torch.Tensor) -> None:
        values = decoder(source.reshape(-1, stored.block_bytes)).view(-1, at_once)
        encoder(values, target.view(len(values), -1))

    _convert(
        blocks.reshape(-1, stored.size_bytes((elements,))),
        encoded.view(-1, wanted.size_bytes((elements,))),
        elements,
        convert,
    )
    return encoded
