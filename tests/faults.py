"""Whether the core suite notices mistakes: faults put in by hand, one at a time.

    python tests/faults.py [WORD…]

Copies the tree, changes one text in the copy, compiles the native library anew where the text is C,
runs the tests that should notice it, and prints a row of a table: the fault, the first test that
failed, and its suite: those of the full one are run only where no test of the core suite failed.
With words, only the faults that have one of them in their row. Exits with the number of faults that
no test noticed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = Path("core/mrs")
NATIVE = PACKAGE / "kernels/cpu/native"
LIMIT_S = 1200
#: Marks of the tests of each suite.
SUITES = {"core": "not full and not slow", "full": "full"}
#: -O1 compiles in a third of the time, and to the same values.
COMPILE = (
    "from mrs.kernels.cpu.native.compile import LIBRARY, compile_library;"
    "compile_library(LIBRARY, '-O1')"
)


class Fault(NamedTuple):
    """A mistake: in a file of the package, one text in place of another that occurs once."""

    part: str
    file: str
    right: str
    wrong: str
    #: What is run: a folder or file of `tests/`, and words of pytest's `-k`.
    tests: str
    words: str = ""


def parity(family: str) -> tuple[str, str]:
    return "families/test_parity.py", f"{family} and test_prompt_reply"


_ATTENTION, _MOE = "layers/attention/module.py", "layers/moe/module.py"
#: Native programs compute what families' parity tests see; these compare torch's modules with them.
TORCH = "kernels/test_native_layers.py"
_C = "kernels/cpu/native"
LAYERS = (
    Fault("window", _ATTENTION, "window=config.window,\n", "window=None,\n", TORCH),
    Fault("softcap", _ATTENTION, "softcap=config.softcap,", "softcap=None,", TORCH),
    Fault("sinks", _ATTENTION, "sinks=sinks,", "sinks=None,", TORCH),
    Fault(
        "bits of activations",
        "quantization/storage.py",
        "rules.activations == 16 or (has_codes",
        "(has_codes",
        "plan/test_activation_bits.py",
    ),
    Fault(
        "norm of queries",
        "graph/attention_operations.py",
        '((q, "mixer.q_norm"), (k, "mixer.k_norm"))',
        '((k, "mixer.k_norm"),)',
        *parity("qwen3-default"),
    ),
    Fault(
        "slopes",
        "graph/attention_operations.py",
        "q, k = with_positions(graph, attention, q, k)",
        "pass",
        *parity("bloom"),
    ),
    Fault("chunks", _ATTENTION, "if config.chunk is not None:", "if False:", TORCH),
    Fault(
        "gated attention",
        "graph/attention_operations.py",
        'gates.append((gate, "sigmoid"))',
        'gates.append((gate, "silu"))',
        *parity("qwen3_next-default"),
    ),
    Fault(
        "latent attention",
        "graph/attention_operations.py",
        'graph.add(graph.norm(values, values, "mixer.kv_a_norm", mla.norm))',
        "pass",
        *parity("deepseek_v2"),
    ),
    Fault(
        "indexer",
        "kernels/selected_attention.py",
        "products.relu_()",
        "products",
        *parity("deepseek_v32-default"),
    ),
    Fault(
        "keys of an indexer",
        "graph/attention_operations.py",
        "index.norm), Rotate(keys, 1, rope))",
        "index.norm))",
        *parity("glm_moe_dsa"),
    ),
    Fault(
        "shared keys and values",
        "graph/attention_operations.py",
        'graph.add(graph.norm(q, q, "mixer.q_norm", attention.qk_norm, attention.head_dim))',
        "pass",
        *parity("gemma3n_text-default"),
    ),
    Fault(
        "delta net",
        "graph/state_operations.py",
        'Normalize(mixed, mixed, "mixer.head_norm", mixer.norm, mixer.value_dim)',
        "",
        *parity("qwen3_next-default"),
    ),
    Fault(
        "Kimi delta attention",
        "graph/state_operations.py",
        'Activate(gate, mixed, "sigmoid")',
        'Activate(gate, mixed, "silu")',
        *parity("kimi_linear"),
    ),
    Fault(
        "short convolution",
        "graph/state_operations.py",
        "graph.add(Multiply(inner, gate_out))",
        "pass",
        *parity("lfm2-default"),
    ),
    Fault(
        "Mamba",
        "graph/state_operations.py",
        "taps, bias=mixer.convolution_bias, silu=True",
        "taps, silu=True",
        *parity("mamba-default"),
    ),
    Fault(
        "Mamba 2",
        "graph/state_operations.py",
        '[Normalize(of, of, "mixer.head_norm", mixer.norm, size, mixer.shares_group)]',
        "[]",
        *parity("mamba2-default"),
    ),
    Fault(
        "two mixers in a layer",
        "graph/layer_graph.py",
        "Scale(out, both.attention_out), ",
        "",
        *parity("falcon_h1-default"),
    ),
    Fault(
        "experts' weights",
        _MOE,
        "weights = weights / weights.sum(-1, keepdim=True)",
        "pass",
        TORCH,
    ),
    Fault(
        "shared expert",
        "graph/feed_forward_operations.py",
        'graph.add(Weigh(shared, x, graph.value(1), "ffn.shared_gate"))',
        "pass",
        *parity("qwen2_moe"),
    ),
    Fault(
        "experts beside an MLP",
        "graph/feed_forward_operations.py",
        'graph.norm(mixed, mixed, "ffn.norm_2", norm), Add(dense, mixed)',
        "Add(dense, mixed)",
        *parity("gemma4_text-experts"),
    ),
    Fault(
        "MLP",
        "graph/feed_forward_operations.py",
        "graph.add(Scale(gate, mlp.gate_scale))",
        "pass",
        *parity("falcon_h1-default"),
    ),
    Fault(
        "window of a program",
        "model/native_program.py",
        "window=attention.window or 0,",
        "window=0,",
        *parity("gemma2"),
    ),
    Fault(
        "sinks of a program",
        "model/native_program.py",
        'vector="mixer.sinks" if attention.sinks else None,',
        "vector=None,",
        *parity("gpt_oss"),
    ),
)
_GGUF = "quantization/gguf"
FORMATS = (
    Fault(
        "Q4_K and Q5_K",
        f"{_GGUF}/k_quants.py",
        "minima = torch.cat((low_minima & 63,",
        "minima = torch.cat((low_minima & 31,",
        "quantization",
    ),
    Fault(
        "Q6_K",
        f"{_GGUF}/k_quants.py",
        "(high << 4)).float() - 32)",
        "(high << 4)).float() - 31)",
        "quantization",
    ),
    Fault(
        "MXFP4 and NVFP4",
        f"{_GGUF}/fp4.py",
        "(0, 1, 2, 3, 4, 6, 8, 12,",
        "(0, 1, 2, 3, 4, 6, 8, 10,",
        "quantization",
    ),
    Fault(
        "NF4",
        f"{_GGUF}/grouped.py",
        "0.7229568362236023",
        "0.7329568362236023",
        "quantization",
    ),
    Fault(
        "INT3",
        f"{_GGUF}/grouped.py",
        "planes(packed[:, 8:], 4, 1) << 2",
        "planes(packed[:, 8:], 4, 1) << 1",
        "quantization",
    ),
    Fault(
        "packed Q6_K",
        f"{_C}/gemm/weights.h",
        "case Q6_K: return 32;",
        "case Q6_K: return 31;",
        "kernels/test_packed.py",
        "Q6_K",
    ),
    Fault(
        "packed MXFP4",
        f"{_C}/gemm/weights.h",
        "case MXFP4: return 12;",
        "case MXFP4: return 11;",
        "kernels/test_packed.py",
        "MXFP4",
    ),
    Fault(
        "packed FP8",
        f"{_C}/gemm/float_codes.inc.h",
        "scale[p] = lanes_mul(scale[p], lanes_float(256));",
        "scale[p] = lanes_mul(scale[p], lanes_float(255));",
        "kernels/test_packed.py",
        "FP8",
    ),
)
PATHS = (
    Fault(
        "portable",
        f"{_C}/isa/lanes_portable.h",
        "(uint32_t)x[i];",
        "(uint32_t)x[i & 2];",
        "kernels/test_packed.py",
        "portable",
    ),
    Fault(
        "AVX2",
        f"{_C}/isa/lanes_avx2.h",
        "return lanes_add(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));",
        "return lanes_add(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(2)));",
        "kernels/test_packed.py",
        "avx2",
    ),
    Fault(
        "AVX-VNNI",
        f"{_C}/isa/lanes_avx_vnni.h",
        "lanes_int(*(const int32_t *)x)",
        "lanes_int(*(const int32_t *)(x + 1))",
        "kernels/test_avx_vnni.py",
    ),
    Fault(
        "AVX-512",
        f"{_C}/isa/lanes_avx512.h",
        "_mm512_sub_ps(_mm512_castsi512_ps(sum), lanes_float(12582912.0f))",
        "_mm512_sub_ps(_mm512_castsi512_ps(sum), lanes_float(12582920.0f))",
        "kernels/test_packed.py",
        "avx512",
    ),
    Fault(
        "AMX",
        f"{_C}/gemm/tiles.inc.h",
        "lanes_fma(lanes_sum_value(sum), scale[g][s], scaled)",
        "lanes_fma(lanes_sum_value(sum), scale[g][0], scaled)",
        "kernels/test_tiles.py",
        "random",
    ),
    Fault(
        "attention of a few tokens",
        f"{_C}/attention/attend.inc.h",
        "heads->total[h] = sinks ? 1 : 0;",
        "heads->total[h] = 0;",
        "kernels/test_steps.py",
    ),
    Fault(
        "attention of many tokens",
        f"{_C}/attention/attend_rows.inc.h",
        "block->total[row] = a->sinks ? 1 : 0;",
        "block->total[row] = 0;",
        "kernels/test_steps.py",
    ),
    Fault(
        "choice of keys",
        f"{_C}/attention/choice.c",
        "(rank == least && same-- > 0)",
        "rank == least",
        "kernels/test_native_choice.py",
    ),
    Fault(
        "scores of an indexer",
        f"{_C}/attention/attend.inc.h",
        "(product > 0 ? product : 0)",
        "product",
        "kernels/test_native_choice.py",
    ),
    Fault(
        "delta rule",
        f"{_C}/recurrent/delta_rule.inc.h",
        "for (; d < keys; d++) read_key(state",
        "for (; d < 0; d++) read_key(state",
        "kernels/test_delta.py",
    ),
    Fault(
        "norms",
        f"{_C}/elementwise.inc.h",
        "sqrtf(sum / (float)size + eps);",
        "sqrtf(sum / (float)size);",
        "kernels/test_steps.py",
        "norm",
    ),
    Fault(
        "exp",
        f"{_C}/exponential.h",
        "p = p * r + 1.6666665459e-1f;",
        "p = p * r + 1.6566665459e-1f;",
        "kernels/test_nonlinearities.py",
    ),
)
ENGINE = (
    Fault(
        "block pool",
        "cache/block_pool.py",
        "if not self._references[block]:",
        "if self._references[block] <= 1:",
        "cache/test_block_tables.py",
    ),
    Fault(
        "states",
        "cache/recurrent_state.py",
        "tensor.zero_() if marked is None else tensor.copy_(marked[number])",
        "tensor.zero_()",
        "cache/test_recurrent_cache.py",
    ),
    Fault(
        "bytes of states",
        "plan/memory/kv_bytes.py",
        "size.sequences * own_bytes",
        "own_bytes",
        "plan/test_kv.py",
    ),
    Fault(
        "placement",
        "plan/placement/fill.py",
        "first=index == 0)",
        "first=False)",
        "plan/test_fill.py",
    ),
    Fault(
        "repetition penalty",
        "engine/sampling/processors.py",
        "before * self._penalty)",
        "before / self._penalty)",
        "engine/test_sampler.py",
    ),
    Fault(
        "presence penalty",
        "engine/sampling/processors.py",
        "self._penalties.append(self._presence)",
        "self._penalties.append(0.0)",
        "engine/test_sampler.py",
    ),
    Fault(
        "top-p",
        "engine/sampling/candidates.py",
        "least = (1 - sampling.top_p) * total / len(candidates.weights)",
        "least = (1 - sampling.top_p) * total",
        "engine/test_sampler.py",
    ),
    Fault(
        "acceptance of drafts",
        "engine/sampling/acceptance.py",
        "rng.random() * drafted[token] < wanted[token]",
        "rng.random() < wanted[token]",
        "engine/test_draft_model.py",
    ),
    Fault(
        "scheduler",
        "engine/scheduler.py",
        "if len(self.running) + (not takes_last) >= self._max_seqs:",
        "if False:",
        "engine/test_scheduler.py",
    ),
    Fault(
        "drafts",
        "engine/scheduler.py",
        "each.max_length - len(each.token_ids) - 1",
        "each.max_length - len(each.token_ids)",
        "engine/test_speculation.py",
    ),
    Fault(
        "grammar",
        "grammar/mask.py",
        'bitorder="little"',
        'bitorder="big"',
        "grammar/test_schemas.py",
    ),
    Fault(
        "stop strings",
        "text/stop_strings.py",
        "if any(stop.startswith(text[-length:])",
        "if False and any(stop.startswith(text[-length:])",
        "text/test_stream.py",
    ),
    Fault(
        "template",
        "text/template.py",
        'named.get("default") or',
        'named.get("tool_use") or',
        "text/test_text_processor.py",
    ),
    Fault(
        "pixels", "media/pixels.py", ".div_(torch.tensor(scale.std))", "", "vision/test_pixels.py"
    ),
    Fault(
        "adapters", "load/merge_adapters.py", ".mul_(update.scale)", "", "families/test_adapters.py"
    ),
    Fault(
        "key of a server",
        "server/http/guard.py",
        "for key in keys) > 0",
        "for key in keys) >= 0",
        "server/test_server_guard.py",
    ),
    Fault(
        "usage of embeddings",
        "server/endpoints/vectors.py",
        "tokens += event.usage",
        "tokens = event.usage",
        "server/test_server_embeddings.py",
    ),
    Fault(
        "seal of a frame",
        "distributed/protocol/channel.py",
        "if not hmac.compare_digest(bytes(self._read(_SEAL_BYTES, until_s)), seal):",
        "if len(self._read(_SEAL_BYTES, until_s)) != len(seal):",
        "distributed/test_handshake.py",
    ),
)
FAULTS = (*LAYERS, *FORMATS, *PATHS, *ENGINE)


def main(words: Sequence[str]) -> int:
    faults = [each for each in FAULTS if not words or any(word in str(each) for word in words)]
    print("| part | file | fault | noticed by | suite |\n| --- | --- | --- | --- | --- |")
    unseen = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder) / "tree")
        for fault in faults:
            test, suite = noticed_by(fault, copy) or ("**none**", "")
            unseen += not suite
            change = f"`{fault.right}` → `{fault.wrong}`".replace("|", "\\|")
            print(f"| {fault.part} | {fault.file} | {change} | {test} | {suite} |", flush=True)
    return unseen


def copied(folder: Path) -> Path:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    libraries = [path.relative_to(ROOT) for path in (ROOT / NATIVE).glob("libmrs.*")]
    for name in (*filter(None, listed.split("\0")), *libraries):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    return folder


def noticed_by(fault: Fault, tree: Path) -> tuple[str, str] | None:
    """The first test that fails with the fault, or what else went wrong, and its suite."""
    path = tree / PACKAGE / fault.file
    before = path.read_text(encoding="utf-8")
    if before.count(fault.right) != 1:
        return f"the text is there {before.count(fault.right)} times", ""
    path.write_text(before.replace(fault.right, fault.wrong), encoding="utf-8")
    is_native = path.suffix in (".c", ".h")
    try:
        if is_native:
            compile_library(tree)
        for suite, marks in SUITES.items():
            if test := first_failure(fault, tree, marks):
                return test, suite
        return None
    finally:
        path.write_text(before, encoding="utf-8")
        if is_native:
            for library in (ROOT / NATIVE).glob("libmrs.*"):
                shutil.copy2(library, tree / NATIVE)


def environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(str(tree / p) for p in ("core", "cli"))}


def compile_library(tree: Path) -> None:
    subprocess.run([sys.executable, "-c", COMPILE], env=environment(tree), check=True)


def first_failure(fault: Fault, tree: Path, marks: str) -> str | None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    command += ["-m", marks]
    words = ["-k", fault.words] if fault.words else []
    try:
        done = subprocess.run(
            [*command, *words, f"tests/{fault.tests}"],
            cwd=tree,
            env=environment(tree),
            stdout=subprocess.PIPE,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"tests that ran for more than {LIMIT_S} s"
    if done.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return None
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return found[1] if found else f"exit code {done.returncode}: {done.stdout[-200:]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
