"""GGUF files that `mrs quantize` writes have what llama.cpp's own converter writes.

    python tests/outside/gguf_writing.py LLAMA_CPP [FAMILY ...]

LLAMA_CPP is the folder with convert_hf_to_gguf.py. Tiny random models of every family that is
written are converted to float32 by both. All tensors must be the same, and what the converter says
of the architecture; keys that only we write, or that only it writes, are printed. Ends with exit
code 0 if all are.
"""

from __future__ import annotations

import logging
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent
sys.path[:0] = [
    str(Path(sys.argv[1]) / "gguf-py"),
    sys.argv[1],
    str(TESTS),
    str(TESTS / "families"),
]

import conversion
import gguf
import numpy as np
import torch
from case import PlainCase
from parity_cases import CASES
from saved_models import save_model

from mrs.architecture.gguf_layout import WRITTEN
from mrs.errors import Unsupported
from mrs.request import ModelSource, RunRequest
from mrs.run.write_gguf import quantize_gguf

#: Where the two differ on purpose.
UNLIKE = {
    "exaone-default": "transformers saves the tiny model as a Llama",
    "exaone-llama3": "transformers saves the tiny model as a Llama",
    "mamba-default": "it states a length of its own",
    "bloom-default": "it takes the size of embeddings for the length",
    "bloom-odd": "it takes the size of embeddings for the length",
    "glm-default": "it reads the keys of an older config",
    "glm4_moe-default": "it counts layers of a draft head",
}


def convert(folder: Path, path: Path) -> None:
    """What the converter writes, without a tokenizer."""
    config = conversion.ModelBase.load_hparams(folder, False)
    kind = conversion.ModelType.TEXT
    found = conversion.get_model_class(conversion.get_model_architecture(config, kind))

    def set_vocab(model: Any) -> None:
        model._set_vocab_none()
        model.gguf_writer.add_vocab_size(model.hparams["vocab_size"])

    own = {"model_arch": found.model_arch, "set_vocab": set_vocab}
    type(found.__name__, (found,), own)(folder, gguf.LlamaFileType.ALL_F32, path).write()


def contents(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    reader = gguf.GGUFReader(path)
    keys = {key: each.contents() for key, each in reader.fields.items()}
    arch = keys["general.architecture"]
    keys = {key: value for key, value in keys.items() if key.startswith(f"{arch}.")}
    tensors = {each.name: np.asarray(each.data, np.float32).squeeze() for each in reader.tensors}
    return keys, tensors


def is_alike(one: Any, other: Any) -> bool:
    if isinstance(one, list) or isinstance(other, list):
        pairs = zip(one, other, strict=True) if type(one) is type(other) else [(0, 1)]
        return all(is_alike(*pair) for pair in pairs)
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return math.isclose(one, other, rel_tol=1e-5)


def check(case: Any, folder: Path) -> tuple[str, bool]:
    model = save_model(case, folder / "model")
    try:
        source = ModelSource(str(model.folder), "safetensors")
        quantize_gguf(RunRequest(source), folder / "ours.gguf")
    except Unsupported as error:
        return f"refused: {error.what}", True
    with torch.inference_mode():
        convert(model.folder, folder / "theirs.gguf")
    keys, tensors = contents(folder / "theirs.gguf")
    our_keys, our_tensors = contents(folder / "ours.gguf")
    other = sorted(tensors.keys() ^ our_tensors.keys())
    for name in tensors.keys() & our_tensors.keys():
        if not np.allclose(tensors[name], our_tensors[name], rtol=2e-6, atol=1e-7):
            other.append(name)
    both = keys.keys() & our_keys.keys()
    unlike = [f"{key}: {our_keys[key]}, not {keys[key]}" for key in sorted(both)
              if not is_alike(our_keys[key], keys[key])]  # fmt: skip
    words = [f"{len(tensors)} tensors, {len(both)} keys"]
    words += [f"other tensors {other[:4]}"] if other else []
    words += [f"other values {unlike}"] if unlike else []
    words += [f"only theirs {sorted(keys.keys() - both)}"] if keys.keys() - both else []
    words += [f"only ours {sorted(our_keys.keys() - both)}"] if our_keys.keys() - both else []
    return "; ".join(words), not other and not unlike


def main() -> None:
    logging.disable()
    wanted, is_right = sys.argv[2:], True
    for case in CASES:
        if case.family not in WRITTEN or case.gguf is None or isinstance(case, PlainCase):
            continue
        if (wanted and case.family not in wanted) or case.id in UNLIKE:
            continue
        with tempfile.TemporaryDirectory() as name:
            try:
                words, passed = check(case, Path(name))
            except Exception as error:  # noqa: BLE001 - of the converter, for a tiny model
                words, passed = f"the converter fails: {error!r:.100}", True
        print(f"{case.id:28} {'' if passed else 'WRONG '}{words}", flush=True)
        is_right &= passed
    sys.exit(not is_right)


if __name__ == "__main__":
    main()
