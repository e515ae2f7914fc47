"""Names of the tensors of models that are spelled as GPT-2."""

from __future__ import annotations

from collections.abc import Mapping

#: All but the matrices of a layer.
GPT2: Mapping[str, str] = {
    "embedding": "transformer.wte",
    "positions": "transformer.wpe",
    "norm": "transformer.ln_f",
    "layer": "transformer.h.{layer}.",
    "mixer.norm": "ln_1",
    "ffn.norm": "ln_2",
}
