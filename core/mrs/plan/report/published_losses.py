"""What quantization loses, as others published it: how far it raises a model's perplexity.

Shares of the perplexity on WikiText-2's test text, against the weights in 16 bits: Llama 3 8B from
`tools/perplexity/README.md` of llama.cpp, Llama 3 70B by dranger003 in its pull request 6745. The
formats are llama.cpp's `_S` mixes where there are several, and `Q2_K`, without an importance matrix
for the smaller model.
"""

from __future__ import annotations

#: Models of at least so many parameters lose what the larger one does.
LARGE_PARAMETERS = 24e9
SMALLER = {"q8_0": 0.0002, "q6k": 0.003, "q5k": 0.017, "q4k": 0.043, "q3k": 0.262, "q2k": 0.564}
LARGER = {"q8_0": 0.0003, "q6k": 0.005, "q5k": 0.019, "q4k": 0.062, "q3k": 0.290, "q2k": 0.687}


#: A format that loses more is not proposed without saying so.
MOST_LOSS = 0.1


def published_loss(isq: str, parameters: float) -> float | None:
    """The share by which a format of `--isq` raises perplexity; None if it is not known."""
    losses = LARGER if parameters >= LARGE_PARAMETERS else SMALLER
    return losses.get(isq)
