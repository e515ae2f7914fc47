"""What torch's own products take, with the units it is allowed to use, in processes of their own.

oneDNN asks for its variable once, before its first product.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from mrs.devices.cpu_path import PATH_VARIABLE, TORCH_VARIABLE
from support.suites import first

#: Prints what a product takes and what is planned for it, beside the result.
PROGRAM = """
import json, sys, torch
from mrs.devices.cpu_path import torch_units
from mrs.formats import FORMATS
from mrs.kernels.dense_products import multiply_heads
from mrs.layers.forward_pass import ForwardShape, head_product_bytes, product_bytes
from mrs.quantization.storage import Storage
from mrs.engine.profile.peak_memory import peak_bytes

cpu, f32, formats = torch.device("cpu"), FORMATS["F32"], {"bfloat16": "BF16", "float16": "F16"}
found = []
for threads, dtype, tokens, columns, rows in json.loads(sys.argv[1]):
    torch.set_num_threads(threads)
    weight = torch.ones(rows, columns, dtype=getattr(torch, dtype))
    x = torch.ones(tokens, columns)
    multiply = lambda: torch.nn.functional.linear(x.to(weight.dtype), weight).float()
    format = FORMATS[formats[dtype]]
    sizes = tokens, tokens, tokens, f32, format, threads
    run = ForwardShape(*sizes, torch_units=torch_units())
    planned = product_bytes(run, columns, rows, Storage(format, 0))
    found.append((peak_bytes(multiply, cpu), planned))
for heads, dtype, tokens, columns, rows in json.loads(sys.argv[2]):
    torch.set_num_threads(1)
    maps = torch.ones(heads, rows, columns, dtype=getattr(torch, dtype))
    x, format = torch.ones(tokens, heads, columns), FORMATS[formats[dtype]]
    run = ForwardShape(tokens, tokens, tokens, f32, format, 1, torch_units=torch_units())
    measured = peak_bytes(lambda: multiply_heads(x, maps), cpu)
    found.append((measured, head_product_bytes(run, heads, columns, rows)))
print(json.dumps(found))
"""
CASES = [
    (1, "bfloat16", 1, 256, 2048),
    (1, "bfloat16", 512, 2048, 256),
    (2, "bfloat16", 512, 2048, 2048),
    (2, "bfloat16", 1024, 4096, 256),
    (1, "float16", 512, 2048, 2048),
    (2, "float16", 16, 256, 256),
]
#: Maps of 8 heads, as latent attention has them.
HEADS = [
    (8, dtype, tokens, columns, rows)
    for dtype in ("bfloat16", "float16")
    for tokens in (1, 512)
    for columns, rows in ((128, 32), (32, 128), (512, 128))
]


@pytest.mark.full
@pytest.mark.parametrize("most", first(1, ["ALL", "AVX2", "AVX512_CORE"]))
def test_products_are_bounded(most: str) -> None:
    """Threads that find nothing to do take nothing, so the bound is close for one thread."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(CASES), json.dumps(HEADS)],
        env={**os.environ, TORCH_VARIABLE: most, PATH_VARIABLE: "torch"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    for case, (measured, planned) in zip([*CASES, *HEADS], found, strict=True):
        assert measured <= planned, case
        assert case[0] > 1 or planned <= 1.15 * measured + 200_000, case
