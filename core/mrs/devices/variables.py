"""Names of environment variables, apart from the rooms that read them: they import more."""

from __future__ import annotations

#: Accelerators that are simulated on the CPU.
LOGICAL_VARIABLE = "MRS_LOGICAL_DEVICES"
#: With the value "off", no decode step is captured as a CUDA graph.
GRAPHS_VARIABLE = "MRS_CUDA_GRAPHS"
#: The kernels that GPUs may use, by a name of `GPU_PATHS`.
GPU_PATH_VARIABLE = "MRS_GPU_PATH"
