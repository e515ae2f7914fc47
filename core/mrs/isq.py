"""Which format each tensor gets when a model is quantized while loading (in-situ). No torch.

The planner and the loader both ask here, so that what is planned is what is loaded.
"""

from __future__ import annotations

from mrs.errors import Unsupported, UsageError
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
}
#: Every value that `--isq` takes.
ISQ_NAMES = (*_BY_NAME, *_BY_BITS)
_LATER = ("hqq4", "hqq8", "fp8")

#: What embedding and head get: 2 to 4 bits -> Q6_K, 5 and more -> Q8_0.
_ONE_STEP_MORE = {
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

#: The 32-number type whose error is no larger, for rows that no 256-number block divides.
_SMALLER_BLOCKS = {
    "Q2_K": "Q4_0",
    "Q3_K": "Q4_0",
    "Q4_K": "Q5_0",
    "Q5_K": "Q8_0",
    "Q6_K": "Q8_0",
}


def parse_isq(text: str) -> Format:
    """The format that a value of `--isq` names: a type in any case, or a number of bits.

    Errors: Unsupported for types that are known but cannot be made, UsageError for the rest.
    """
    name = text.strip().lower()
    if name in _LATER:
        raise Unsupported(
            f"--isq {text} is not available", hint=f"choose one of {', '.join(_BY_NAME)}"
        )
    if (format_name := _BY_BITS.get(name) or _BY_NAME.get(name)) is None:
        choices = ", ".join(ISQ_NAMES)
        raise UsageError(f"--isq {text} is no quantization", hint=f"choose one of {choices}")
    return FORMATS[format_name]


def isq_name(format_name: str) -> str:
    """How `--isq` spells a format: `Q4_K` is `q4k`; KeyError for one that it does not make."""
    return {made: name for name, made in _BY_NAME.items()}[format_name]


def isq_format(
    role: str, shape: tuple[int, ...], level: Format, stored: Format
) -> tuple[Format, str | None]:
    """The format of one tensor under `--isq level`, and why it differs from the level's.

    `role` is a parameter's role (`matrix`, `embedding`, `head` or `vector`), `shape` ends with
    the row, `stored` is the format it has now, which vectors keep without a reason being given.
    Embedding and head get one step more precision. What is stored in as few bits already stays:
    quantizing it again would only lose.
    """
    if role == "vector":
        return stored, None
    wanted = FORMATS[_ONE_STEP_MORE[level.name]] if role in ("embedding", "head") else level
    if stored == wanted:
        return stored, None
    if stored.is_quantized and stored.bits_per_weight <= wanted.bits_per_weight:
        return stored, f"already {stored.name}"
    row = shape[-1]
    if row % wanted.block_elements == 0:
        return wanted, None
    cut = f"rows of {row} are no whole number of {wanted.name} blocks ({wanted.block_elements})"
    smaller = FORMATS[_SMALLER_BLOCKS.get(wanted.name, wanted.name)]
    if row % smaller.block_elements == 0:
        return smaller, f"{cut}: {smaller.name} instead"
    return stored, f"{cut}, nor of smaller ones: left as {stored.name}"
