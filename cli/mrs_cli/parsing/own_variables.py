"""Environment variables of `mrs` that are no flags; each flag has one, too: see `settings.py`."""

from __future__ import annotations

OWN_VARIABLES = {
    "MRS_CUDA_GRAPHS": "if off, decode steps on an NVIDIA GPU are not captured as CUDA graphs",
    "MRS_GPU_PATH": "the best kernels that GPUs may use: cuda, triton or torch; without it, a test "
    "on the GPU chooses",
    "MRS_CPU_PATH": "another path of this processor than its best; mrs doctor names them",
    "MRS_LOGICAL_DEVICES": "accelerators simulated on the CPU, such as cpu,cpu or cpu=2GiB",
    "MRS_API_KEY": "a key of the server, in addition to those of --api-key-file",
    "MRS_CLUSTER_SECRET, MRS_CLUSTER_SECRET_FILE": "the secret of a coordinator and its workers "
    "on other machines, or a file of mode 0600 with it; all processes need the same, also those "
    "that torchrun or Slurm start on several machines",
}
#: What processes of one model tell each other.
_INTERNAL = ("MRS_PARENT_PID",)


def own_names() -> set[str]:
    return {*_INTERNAL, *(name for names in OWN_VARIABLES for name in names.split(", "))}
