"""The native kernels for CPUs, and their C library.

`MRS_CPU_PATH` forces one of the paths that the processor can run: `amx`, `avx512_bf16`, `avx512`,
`avx2`, `neon`, `portable` or `torch`. Kernels and plan follow it (`core/mrs/devices/cpu_path.py`).
After a change of the C sources:

- `python -m mrs.kernels.cpu.native.compile` builds the library in place;
- `python tests/paths.py` runs the tests of kernels, models and plans under each path;
- `python tests/sanitize.py` runs the kernels under the sanitizers of gcc.
"""
