"""UQFF files of mistral.rs read by mrs, and the other way round.

    PYTHONPATH=FOLDER python tests/outside/uqff_mistralrs.py [KIND ...]

FOLDER has the Python package mistralrs 0.9.5. A tiny random model is written by each program with
every --isq that it makes on a CPU. Both read each file; the log probabilities that mistral.rs
returns after a prompt must be those of mrs, which multiplies the same weights in float32. Ends with
exit code 0 if all agree.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "families"), str(TESTS / "quantization")]

from running import Conversation, load
from safetensors.torch import save_file

from mrs.request import ModelSource, RunRequest
from mrs.run.write_uqff import quantize
from support.byte_tokenizer import byte_tokenizer
from support.model_files import tensor_shapes

CONFIG: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MIXTRAL = {
    **CONFIG, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None,
}  # fmt: skip
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
PROMPT = "what is a cache"
OURS = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2k", "q3k", "q4k", "q5k", "q6k")
#: Kinds that only mistral.rs makes, without q8_1 and q8k, which it does not read itself.
THEIRS = ("hqq4", "hqq8", "fp8", "f8q8", "mxfp4", "afq2", "afq3", "afq4", "afq6", "afq8")
#: Largest difference of log probabilities. mistral.rs rounds activations to 8 bits for these kinds.
LIMITS = dict.fromkeys(OURS, 0.15)
EXACT = 2e-3


def make_model(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir()
    torch.manual_seed(0)
    weights = {name: torch.randn(shape) * 0.05 for name, shape in tensor_shapes(config).items()}
    weights |= {name: 1 + each for name, each in weights.items() if "norm" in name}
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    byte_tokenizer(512).save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def peer(*words: str) -> Any:
    """What a process with mistral.rs returns."""
    command = [sys.executable, str(Path(__file__).with_name("mistralrs_process.py")), *words]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in ran.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise SystemExit(f"mistral.rs failed: {' '.join(words)}\n{ran.stdout}\n{ran.stderr}")
    return json.loads(lines[-1].removeprefix("RESULT "))


def difference(folder: Path, name: str) -> float:
    """The largest difference of the likeliest tokens' log probabilities."""
    theirs = peer("read", str(folder), PROMPT, name)
    loaded = load(ModelSource(str(folder), "safetensors", uqff=(name,)), packs=False)
    prompt = byte_tokenizer(512).encode(PROMPT).ids
    ours = Conversation(loaded.decoder).feed(prompt)[-1].log_softmax(-1)
    return max(abs(float(ours[token]) - logprob) for token, logprob in theirs)


def main(kinds: list[str]) -> int:
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for config in (CONFIG, MIXTRAL):
            model = make_model(root / config["model_type"], config)
            every = ("q4k", "q8_0") if config is MIXTRAL else (*OURS, *THEIRS)
            for kind in (each for each in every if not kinds or each in kinds):
                out = root / f"{model.name}-{kind}"
                peer("write", str(model), kind, str(out / "theirs" / "m.uqff"))
                found = [("theirs", difference(out / "theirs", "m-0.uqff"))]
                if kind in OURS:
                    source = ModelSource(str(model), "safetensors")
                    quantize(RunRequest(source, isq=kind, write_uqff=str(out / "ours")))
                    found.append(("ours", difference(out / "ours", f"{kind}-0.uqff")))
                for whose, value in found:
                    is_near = value < LIMITS.get(kind, EXACT)
                    failed += not is_near
                    says = "" if is_near else "  TOO FAR"
                    print(f"{model.name} {kind} of {whose}: {value:.2g}{says}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
