"""`mrs` with a real, tiny, random model: every way that a run can end."""

from __future__ import annotations

import io
import json
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mrs_runs import REAL_MRS

from mrs_cli.app import main
from mrs_cli.environment import Environment
from support.suites import first

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
#: A reply that nothing but its length ends: the model's next token is its last one by chance.
LONG_REPLY = ["-q", "--min-tokens", "8000", "--max-tokens", "8000", "plain"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A random Llama of four layers as transformers saves it, with a byte tokenizer."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("model")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["</s>", "<|user|>", "<|assistant|>", "<|system|>"]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(specials + letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(fast),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        bos_token_id=None,
        eos_token_id=None,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def run(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code = main(arguments, Environment(io.StringIO(stdin), out, err))
    return code, out.getvalue(), err.getvalue()


def copied(model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model, tmp_path / "copy"))


def test_the_same_seed_says_the_same(model):
    flags = ["plain", "-m", str(model), "--max-tokens", "12", "--temperature", "1", "--json"]
    first, second = (run("-s", "3", *flags, "--top-p", "1", "-P", "hi") for _ in range(2))
    assert first[0] == 0
    reply = json.loads(first[1])
    assert (reply["finish_reason"], reply["completion_tokens"]) == ("length", 12)
    assert reply["text"] == json.loads(second[1])["text"]


def test_a_seed_that_is_set_says_the_same_again(model):
    lines = ["\\set seed 5", "hi", "\\retry", "\\set seed 6", "\\retry", "\\set seed 5", "\\retry"]
    flags = ["-i", "--seed", "3", "plain", "-m", str(model), "--max-tokens", "12"]
    flags += ["--temperature", "1", "--top-p", "1", "--json"]
    code, out, _ = run(*flags, stdin="\n".join(lines) + "\n")
    first, again, other, third = (json.loads(line)["text"] for line in out.splitlines())
    assert code == 0
    assert first == again == third != other


def test_the_second_turn_sees_the_first(model):
    code, out, _ = run(
        *["-i", "plain", "-m", str(model), "--max-tokens", "3", "--temperature", "0", "--json"],
        stdin="hi\nhi\n",
    )
    first, second = map(json.loads, out.splitlines())
    assert code == 0
    assert (first["prompt_tokens"], second["prompt_tokens"] > 8) == (4, True)


def test_a_thought_that_the_template_opens_begins_the_reply(model, tmp_path):
    template = tmp_path / "thinks.jinja"
    template.write_text(TEMPLATE + "<think>\n{# </think> #}", encoding="utf-8")
    code, out, _ = run(
        *["--jinja-explicit", str(template), "plain", "-m", str(model)],
        *["--max-tokens", "2", "-P", "hi", "--json"],
    )
    assert code == 0
    assert json.loads(out)["text"].startswith("<think>\n")


def test_a_conversation_fills_the_context(model):
    flags = ["-i", "plain", "-m", str(model), "--max-tokens", "2", "--temperature", "0", "-q"]
    code, out, err = run(*flags, stdin="hi\n" + "x" * 8182 + "\n")
    assert (code, out.count("\n")) == (2, 1)
    assert "context holds 8192: put \\new before this message" in err
    code, _, err = run(*flags, stdin="x" * 9000 + "\n")
    assert code == 2
    assert "the prompt has 9002 tokens and the model's context holds 8192: shorten" in err


def test_a_split_says_the_same(model, monkeypatch):
    flags = ["plain", "-m", str(model), "--max-tokens", "8", "--temperature", "0", "-P", "hi"]
    whole = run(*flags)
    monkeypatch.setenv("MRS_LOGICAL_DEVICES", "cpu,cpu")
    split = run("-n", "0:2;1:1", *flags)
    assert whole[:2] == split[:2]
    assert split[2] != whole[2]


def truncated_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def config_without_a_key(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del config["num_hidden_layers"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def unknown_architecture(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["architectures"], config["model_type"] = ["NoneSuch"], "nonesuch"
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def pickled_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("break_it", "code", "word"),
    [
        (truncated_weights, 3, "model.safetensors"),
        (config_without_a_key, 3, "num_hidden_layers"),
        (unknown_architecture, 5, "nonesuch"),
        (pickled_weights, 5, "safetensors"),
    ],
)
def test_a_broken_model_ends_in_one_line(model, tmp_path, break_it, code, word):
    folder = copied(model, tmp_path)
    break_it(folder)
    ended, out, err = run("plain", "-m", str(folder), "-P", "hi")
    assert (ended, out) == (code, "")
    assert err.startswith("mrs: error: ")
    assert err.count("\n") == 1
    assert word in err


@pytest.mark.parametrize("arguments", [["plain", "-m"], ["gguf", "-f", "x.gguf", "-m"]])
def test_a_path_that_is_not_there(arguments, tmp_path):
    code, out, err = run(*arguments, str(tmp_path / "nothing"), "-P", "hi")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "nothing" in err


def test_a_truncated_gguf(tmp_path):
    (tmp_path / "cut.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 5, 5))
    code, out, err = run("gguf", "-m", str(tmp_path), "-f", "cut.gguf", "-P", "hi")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "cut.gguf" in err


@pytest.mark.parametrize(
    ("layers", "quoted"), [("0:9", "0:9"), ("0:2;0:2", "0:2"), ("x", "x"), ("0:2;7:1", "7:1")]
)
def test_a_wrong_layer_map(model, monkeypatch, layers, quoted):
    monkeypatch.setenv("MRS_LOGICAL_DEVICES", "cpu,cpu")
    code, out, err = run("-n", layers, "plain", "-m", str(model), "-P", "hi")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"'{quoted}'" in err


@pytest.mark.full
@pytest.mark.parametrize("sent", first(1, [signal.SIGINT, signal.SIGTERM]))
def test_a_signal_while_generating(model, start_mrs, sent):
    process = start_mrs(*LONG_REPLY, "-m", str(model), "-P", "hi", command=REAL_MRS)
    if sys.platform == "linux":  # it has to wait for its reader, however late that one looks
        import fcntl

        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
    assert process.stdout.read(3), process.stderr.read()
    process.send_signal(sent)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err == ("mrs: interrupted\n" if sent == signal.SIGINT else "")


@pytest.mark.full
def test_a_run_that_is_killed_leaves_its_prompt_to_the_next(
    model, start_mrs, process_env, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", process_env["XDG_STATE_HOME"])
    cache = ["--prefix-cache-dir", str(tmp_path)]
    flags = ["-q", *cache, "plain", "-m", str(model)]
    long = [*cache, *LONG_REPLY, "-m", str(model), "-P", "hello " * 40]
    process = start_mrs(*long, command=REAL_MRS)
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("*.safetensors"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    code, out, err = run(*flags, "--json", "--max-tokens", "3", "-P", "hello " * 40 + "you")
    assert (code, err) == (0, "")
    assert json.loads(out)["cached_tokens"] in (128, 240)


@pytest.mark.full
def test_ctrl_c_while_loading(model, start_mrs):
    process = start_mrs("-i", "plain", "-m", str(model), command=REAL_MRS, stdin=subprocess.PIPE)
    maps, deadline = Path(f"/proc/{process.pid}/maps"), time.monotonic() + 120
    while maps.exists() and "/torch/" not in maps.read_text() and time.monotonic() < deadline:
        time.sleep(0.01)  # until torch is being imported
    if not maps.exists():  # not Linux
        time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "mrs: interrupted"
    assert "Traceback" not in err


@pytest.mark.full  # core has a fake model: test_cli_process.py
def test_a_reader_that_leaves(model, start_mrs):
    process = start_mrs(*LONG_REPLY, "-m", str(model), "-P", "hi", command=REAL_MRS)
    assert process.stdout.read(3)
    process.stdout.close()
    assert process.wait(timeout=120) == 0
    assert process.stderr.read() == ""
