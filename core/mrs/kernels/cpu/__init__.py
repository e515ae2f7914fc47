"""The native kernels for CPUs, and their C library.

`MRS_CPU_PATH` forces one of the paths that the processor can run: `amx`, `avx512_bf16`, `avx512`,
`avx_vnni`, `avx2`, `neon`, `portable` or `torch`. Kernels and plan follow it
(`core/mrs/devices/cpu_path.py`).
After a change of the C sources:

- `python -m mrs.kernels.cpu.native.compile` builds the library in place;
- `python -m mrs.kernels.cpu.native.structs` writes `core/mrs/kernels/c_structs.py` anew: structs,
  kinds of operations and functions as Python calls them, after a change of these;
- `python tests/paths.py` runs the tests of kernels, models and plans under each path, with AMX
  emulated where there is only AVX-512;
- `python tests/sanitize.py` runs the kernels under the sanitizers of gcc.

What a step names (tokens, positions, blocks, slots, rows) is compared with what there is once for
each call, in `cpu/native/bounds.c`; `outcome.py` makes errors of what the calls return.

A token's result has the same bits whatever other tokens and threads compute with it: a kernel has
one order of sums, and `tests/model/test_equal_bits.py` feeds tiny models of every kind of layer in
several ways. Torch's matrix products do not have this property, nor do its `sigmoid`, `silu`,
`gelu` and `softplus`, which compute the last values of a tensor otherwise; `exp`, `erf`, `tanh` and
`softmax` do. Use `kernels/dense_products.py` and `kernels/nonlinearities.py`.
"""
