"""In-situ quantization (ISQ): the format of each tensor that is quantized while loading. No torch.

Planner and loader share these rules, so that the plan matches what is loaded.
"""

from __future__ import annotations

from mrs.errors import UsageError
from mrs.formats import FORMATS, Format

_BY_BITS = {"2": "Q2_K", "3": "Q3_K", "4": "Q4_K", "5": "Q5_K", "6": "Q6_K", "8": "Q8_0"}
_BY_NAME = {
    "q4_0": "Q4_0",
    "q4_1": "Q4_1",
    "q5_0": "Q5_0",
    "q5_1": "Q5_1",
    "q8_0": "Q8_0",
    "q2k": "Q2_K",
    "q3k": "Q3_K",
    "q4k": "Q4_K",
    "q5k": "Q5_K",
    "q6k": "Q6_K",
    "afq2": "INT2_64",
    "afq3": "INT3_64",
    "afq4": "INT4_64",
    "afq8": "INT8_64",
    "fp8": "FP8_128",
    "mxfp4": "MXFP4",
}
#: Other values of `--isq` in mistralrs: the format with the same bits and no larger error.
_ALIASES = {
    "hqq4": "INT4_64",
    "hqq8": "INT8_64",
    "afq6": "Q6_K",
    "q8_1": "Q8_0",
    "q8k": "Q8_0",
    "f8q8": "Q8_0",
}
#: Quantizations as GGUF files name them; an ending is a mix with some matrices in more bits.
_GGUF_NAMES = {
    "q2_k": "Q2_K",
    **dict.fromkeys(("q3_k", "q3_k_s", "q3_k_m", "q3_k_l"), "Q3_K"),
    **dict.fromkeys(("q4_k", "q4_k_s", "q4_k_m"), "Q4_K"),
    **dict.fromkeys(("q5_k", "q5_k_s", "q5_k_m"), "Q5_K"),
    "q6_k": "Q6_K",
}
#: Every value of `--isq`, without those of `_GGUF_NAMES`.
ISQ_NAMES = (*_BY_NAME, *_ALIASES, *_BY_BITS)
#: Formats of files in which weights stay that an adapter changes; others become floats.
ENCODABLE = frozenset(name for name in _BY_NAME.values() if name.startswith("Q"))

#: Formats of embedding and head: Q6_K for 2 to 4 bits, Q8_0 for 5 bits and more.
_EMBEDDING_FORMATS = {
    **dict.fromkeys(("INT2_64", "INT3_64", "INT4_64", "MXFP4"), "Q6_K"),
    **dict.fromkeys(("INT8_64", "FP8_128"), "Q8_0"),
    "Q2_K": "Q6_K",
    "Q3_K": "Q6_K",
    "Q4_0": "Q6_K",
    "Q4_1": "Q6_K",
    "Q4_K": "Q6_K",
    "Q5_0": "Q8_0",
    "Q5_1": "Q8_0",
    "Q5_K": "Q8_0",
    "Q6_K": "Q8_0",
    "Q8_0": "Q8_0",
}

#: For rows that a block does not divide: formats with blocks of 32 and no larger error.
_SMALLER_BLOCKS = {
    "INT2_64": "INT2_32",
    "INT3_64": "INT3_32",
    "INT4_64": "INT4_32",
    "INT8_64": "INT8_32",
    "FP8_128": "FP8_32",
    "Q2_K": "Q4_0",
    "Q3_K": "Q4_0",
    "Q4_K": "Q5_0",
    "Q5_K": "Q8_0",
    "Q6_K": "Q8_0",
}


def parse_isq(text: str) -> Format:
    """The format for a value of `--isq`: a format name in any case, or a number of bits.

    `Q4_K_M` is `q4k`; see `mix_note`. Raises UsageError for others.
    """
    name = text.strip().lower()
    known = {**_BY_BITS, **_ALIASES, **_GGUF_NAMES, **_BY_NAME}
    if (format_name := known.get(name)) is None:
        from difflib import get_close_matches

        choices = ", ".join(ISQ_NAMES)
        near = get_close_matches(name, known, n=1)
        question = f"did you mean {near[0]}? The formats are " if near else "choose one of "
        raise UsageError(f"--isq {text} is not a known format", hint=f"{question}{choices}")
    return FORMATS[format_name]


def mix_note(text: str) -> str | None:
    """What a value such as `Q4_K_M` means here, if a GGUF file of that name has more than that."""
    name = text.strip().lower()
    if name not in _GGUF_NAMES or name == _GGUF_NAMES[name].lower():
        return None
    return (
        f"--isq {text} is {isq_name(_GGUF_NAMES[name])}: llama.cpp's mix, which gives some "
        "matrices more bits, is only for the GGUF files that mrs quantize writes"
    )


def isq_name(format_name: str) -> str:
    """The value of `--isq` for a format: `q4k` for `Q4_K`; KeyError if there is none."""
    return {known: name for name, known in _BY_NAME.items()}[format_name]


def isq_format(
    role: str, shape: tuple[int, ...], isq: Format, stored: Format
) -> tuple[Format, str | None]:
    """(format of one tensor if `--isq` asks for `isq`, why it is another or None).

    `role` is the parameter's role, the last dimension of `shape` is the row, `stored` is the format
    in the file. Vectors are not quantized. Embedding and head get more bits (`_EMBEDDING_FORMATS`).
    A tensor that has as few bits in the file is not quantized again, which would only add error.
    """
    if role == "vector":
        return stored, None
    wanted = FORMATS[_EMBEDDING_FORMATS[isq.name]] if role in ("embedding", "head") else isq
    if stored == wanted:
        return stored, None
    if stored.is_quantized and stored.bits_per_weight <= wanted.bits_per_weight:
        return stored, f"already {stored.name} in the file"
    row = shape[-1]
    if row % wanted.block_elements == 0:
        return wanted, None
    reason = f"rows of {row} are not a multiple of {wanted.name} blocks ({wanted.block_elements})"
    smaller = FORMATS[_SMALLER_BLOCKS.get(wanted.name, wanted.name)]
    if row % smaller.block_elements == 0:
        return smaller, f"{reason}: {smaller.name} instead"
    return stored, f"{reason}, nor of smaller blocks: left as {stored.name}"
