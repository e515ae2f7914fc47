"""Kernels for NVIDIA GPUs in Triton, and what calls them."""

import os

#: A product and a sum are one instruction. Triton 3.10 makes two of them unless it is told, and 3.9
#: warns of that.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
