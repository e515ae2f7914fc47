"""Kernels for NVIDIA GPUs in CUDA C++, compiled on the machine that runs them by NVRTC.

`nvrtc.py` finds NVIDIA's compiler among the libraries that torch's CUDA builds bring and compiles
`source/` to a cubin, which `cubins.py` keeps in the cache folder; `driver.py` loads it and launches
kernels by the driver's interface, on torch's current stream, so that CUDA graphs capture them.

`products.py` multiplies up to three matrices with 1 to 64 tokens at a time in one launch, after
one that prepares the tokens: with an RMS norm, or silu(gate) * up. `cuda/source/formats.h` says how
weights lie, and `fragments.py` brings the blocks of a GGUF file into that order, in as many bytes.
The order of sums depends on the shapes of the matrices alone: a token has the same bits whatever
others are computed with it.

Nothing here has run on a GPU yet, so that no model uses it: its tests compile it for six
architectures, count the instructions of its loops, and run the same text on a CPU, whose lanes take
turns (`tests/kernels/emulated_gpu.h`). `tests/bench/cuda_products.py` is for the first GPU.
"""
