"""Kernels for NVIDIA GPUs in CUDA C++, compiled on the machine that runs them by NVRTC.

`nvrtc.py` finds NVIDIA's compiler among the libraries that torch's CUDA builds bring and compiles
`source/` to a cubin, which `cubins.py` keeps in the cache folder; `driver.py` loads it, and
`launcher.py` launches kernels by the driver's interface, on torch's current stream, so that CUDA
graphs capture them. A kernel may begin before the one before it is done, and then reads weights.

`fragment_matrix.py` is what quantized weights become that are loaded on such a GPU:
`cuda/source/formats.h` says how they lie, and `fragments.py` brings the blocks of a GGUF file into
that order, in as many bytes. `products.py` multiplies up to three matrices, or bf16 ones as they
are, with 1 to 64 tokens in one launch, with an RMS norm before them and a residual or a gate after
them; `decode.py` makes rows of more for torch. The order of sums depends on the shapes of the
matrices alone: a token has the same bits whatever others are computed with it. `rows.py` norms rows
and rotates heads on their way to the cache, `routing.py` chooses experts.

`model/cuda_operations.py` matches the operations of a layer to these kernels. `self_test.py`
compares each with torch on the device before it is used, in a process of its own that may crash
(`quantization/cuda_trial.py`), where `timing.py` compares products with those of other kernels.
What fails or is slower is left to Triton and torch.

Nothing here has run on a GPU yet: its tests compile it for six architectures, count the
instructions of its loops and the launches of layers, and run the same text on a CPU, whose lanes
take turns (`tests/kernels/emulated_gpu.h`). `python tests/gpu.py --cuda` is for the first GPU.
"""
