"""What `mrs.kernels.workspace` says of a kernel is what the kernel allocates, to the byte."""

from __future__ import annotations

import pytest
import torch
from packed_blocks import random_blocks

from mrs.engine.profile.peak_memory import peak_bytes
from mrs.kernels.cpu import elementwise
from mrs.kernels.cpu.library import NativeLibrary
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.kernels.delta_rule import gated_delta_rule
from mrs.kernels.workspace.delta_rule import chunk_bytes, native_bytes
from mrs.kernels.workspace.products import packed_workspace_bytes

CPU = torch.device("cpu")
TOKENS = (1, 2, 3, 4, 5, 9, 12, 13, 16, 17, 21, 40, 129, 600)


def matrix_of(name: str, rows: int, columns: int) -> PackedMatrix:
    matrix = PackedMatrix(name, rows, columns)
    matrix.fill(random_blocks(name, rows, columns))
    return matrix


@pytest.mark.few(24)
@pytest.mark.parametrize(
    "name",
    ["Q4_0", "Q4_K", "Q6_K", "Q8_0", "MXFP4", "INT4_128", "F16", "BF16", "F32", "FP8_64", "NF4_32"],
)
@pytest.mark.parametrize(("rows", "columns"), [(16, 256), (40, 512), (700, 1280)])
def test_products(library: NativeLibrary, name: str, rows: int, columns: int) -> None:
    matrix, path = matrix_of(name, rows, columns), library.path
    for tokens in TOKENS:
        library.functions.mrs_scratch_peak()
        matrix.matmul(torch.ones(tokens, columns))
        taken = library.functions.mrs_scratch_peak()
        assert taken == packed_workspace_bytes(path, [name], tokens, columns), tokens
    matrix.add_residuals()
    for tokens in TOKENS:
        library.functions.mrs_scratch_peak()
        matrix.matmul(torch.ones(tokens, columns))
        taken = library.functions.mrs_scratch_peak()
        assert taken == packed_workspace_bytes(path, [], tokens, columns, [name]), tokens


@pytest.mark.parametrize(("tokens", "key_dim", "value_dim"), [(64, 32, 32), (20, 128, 64)])
@pytest.mark.parametrize("path", ["native", "torch"])
def test_the_delta_rule(
    library: NativeLibrary,
    tokens: int,
    key_dim: int,
    value_dim: int,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if path == "torch":
        monkeypatch.setattr(elementwise, "library_for", lambda x: None)
    heads = 8
    given = [torch.rand(tokens, heads, dim) for dim in (key_dim, key_dim, value_dim)]
    decays = [-torch.rand(tokens, heads), torch.rand(tokens, heads)]
    state = torch.zeros(heads, key_dim, value_dim)
    library.functions.mrs_scratch_peak()
    taken = peak_bytes(lambda: gated_delta_rule(*given, *decays, state), CPU)
    if path == "torch":
        assert taken == chunk_bytes(tokens, heads, key_dim, value_dim)
    else:
        assert taken == given[-1].nbytes
        assert library.functions.mrs_scratch_peak() == native_bytes(1, key_dim)
