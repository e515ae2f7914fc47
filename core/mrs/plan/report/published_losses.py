"""What quantization loses, as others published it: how far it raises a model's perplexity.

Shares of the perplexity on WikiText-2's test text, against the weights in 16 bits: Llama 3 8B from
`tools/perplexity/README.md` of llama.cpp, Llama 3 70B by dranger003 in its pull request 6745. The
formats are llama.cpp's `_S` mixes where there are several, and `Q2_K`, without an importance matrix
for the smaller model.
"""

from __future__ import annotations

from mrs.units import GIB

#: Models of at least so many parameters lose what the larger one does.
LARGE_PARAMETERS = 24e9
SMALLER = {"q8_0": 0.0002, "q6k": 0.003, "q5k": 0.017, "q4k": 0.043, "q3k": 0.262, "q2k": 0.564}
LARGER = {"q8_0": 0.0003, "q6k": 0.005, "q5k": 0.019, "q4k": 0.062, "q3k": 0.290, "q2k": 0.687}

#: The size in GiB of Llama 3 8B and its mean divergence from F16 in nats, from the same README.
DIVERGENCES = {
    "Q8_0": (7.96, 0.001355),
    "Q6_K": (6.14, 0.005452),
    "Q5_K_M": (5.33, 0.010762),
    "Q4_K_M": (4.58, 0.031273),
    "Q4_K_S": (4.37, 0.043136),
    "Q3_K_M": (3.74, 0.101913),
    "Q3_K_S": (3.41, 0.228217),
    "Q2_K": (2.96, 0.445132),
}
LLAMA_3_8B_PARAMETERS = 8.03e9

#: A format that loses more is not proposed without saying so.
MOST_LOSS = 0.1


def published_loss(isq: str, parameters: float) -> float | None:
    """The share by which a format of `--isq` raises perplexity; None if it is not known."""
    losses = LARGER if parameters >= LARGE_PARAMETERS else SMALLER
    return losses.get(isq)


def bits_of(name: str) -> float:
    """The bits a weight of a format in `DIVERGENCES`, the larger ones of some matrices included."""
    return DIVERGENCES[name][0] * 8 * GIB / LLAMA_3_8B_PARAMETERS
