"""`mrs doctor --gpu`: the kernels of each GPU, run and compared with torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from mrs.doctor.machine import Check

if TYPE_CHECKING:
    import torch

    from mrs.kernels.triton.bit_planes import PlaneLayout
    from mrs.quantization.cuda_trial import Verdict

_REPORT = "python tests/gpu.py, in the source folder, tells more"


def examine_gpus() -> Iterator[Check]:
    """A check for each kind of kernel on each GPU; the first time takes minutes, to compile."""
    import torch

    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            yield from _examine_nvidia(torch.device("cuda", index))
    elif torch.backends.mps.is_available():
        cure = "python tests/mps.py, in the source folder, compares three families"
        yield Check("mps:0", "note", "torch computes everything: there are no kernels", cure)
    else:
        built = torch.version.cuda or torch.version.hip
        text = f"torch {torch.__version__} finds none: no kernel was run"
        cure = "install a driver" if built else "install a build of torch for your GPU"
        yield Check("GPU kernels", "note", text, f"with a GPU, {cure}")


def _examine_nvidia(device: torch.device) -> Iterator[Check]:
    import torch

    from mrs.kernels.flashinfer_attention import FlashInferAttention
    from mrs.kernels.triton import attention_check, decode_check
    from mrs.kernels.triton.self_test import LAYOUTS, products_unavailable_reason, worst_of

    yield Check(str(device), "ok", f"{torch.cuda.get_device_name(device)}; {_REPORT}")
    yield from _of_cuda_kernels(device)
    reason = products_unavailable_reason(device)
    if reason is not None:
        yield Check(f"{device} products", "bad", reason, "install the Triton of your torch")
        return
    yield Check(f"{device} products", "ok", "quantized products are right")

    def with_all_layouts(
        error_of: Callable[[torch.device, PlaneLayout | None], float], device: torch.device
    ) -> float:
        return worst_of(error_of(device, layout) for layout in (None, *LAYOUTS))

    in_8_bits = partial(attention_check.attention_error, dtype=torch.float8_e4m3fn)
    checks: list[tuple[str, Callable[[torch.device], float]]] = [
        ("attention", attention_check.attention_error),
        ("8-bit KV cache", in_8_bits),
        ("decode", partial(with_all_layouts, decode_check.decode_error)),
        ("experts", partial(with_all_layouts, decode_check.expert_error)),
    ]
    if find_spec("flashinfer") is not None:
        attend = FlashInferAttention().attend
        of_flashinfer = partial(attention_check.attention_error, attend=attend)
        checks.append(("FlashInfer", of_flashinfer))
    for name, error_on in checks:
        error = partial(error_on, device)
        yield _compared(f"{device} {name}", error, attention_check.LARGEST_ERROR)


def _of_cuda_kernels(device: torch.device) -> Iterator[Check]:
    """What was found about the CUDA kernels of each kind; those that failed are tried again."""
    from mrs.devices.gpu_path import gpu_path
    from mrs.devices.variables import GPU_PATH_VARIABLE
    from mrs.kernels.cuda.fragments import FRAGMENT_FORMATS
    from mrs.kernels.cuda.self_test import missing_reason
    from mrs.quantization.cuda_kernels import verdict
    from mrs.quantization.cuda_trial import ROWS, CannotTry

    name, path = f"{device} CUDA kernels", gpu_path()
    if path in ("triton", "torch"):
        text = f"not used: {GPU_PATH_VARIABLE} is {path}"
        yield Check(name, "note", text, f"unset {GPU_PATH_VARIABLE}")
        return
    if (reason := missing_reason(device)) is not None:
        text = f"other kernels are used: {reason}"
        cure = "install a CUDA build of torch, which brings NVRTC"
        yield Check(name, "note", text, cure)
        return
    for kind in (*FRAGMENT_FORMATS, "BF16", ROWS):
        name = f"{device} CUDA {kind}"
        try:
            found = verdict(device, kind, retries_failure=True)
        except CannotTry as error:
            yield Check(name, "bad", f"could not be tested: {error}", _REPORT)
            continue
        times = _times(found)
        if found.reason is not None:
            yield Check(name, "bad", found.reason, _REPORT)
        elif found.is_slower and path != "cuda":
            cure = f"{GPU_PATH_VARIABLE}=cuda uses them all the same"
            yield Check(name, "note", f"right, but slower than others{times}", cure)
        else:
            yield Check(name, "ok", f"right{times}")


def _times(found: Verdict) -> str:
    """The times of both kinds of kernels, for 1 token and more; empty if there are none."""
    from mrs.kernels.cuda.timing import COLUMNS, ROWS, TOKENS

    if found.cuda_s is None or found.other_s is None:
        return ""
    parts = (
        f"{1e6 * own:.1f} µs for {count} {'token' if count == 1 else 'tokens'} "
        f"(others {1e6 * other:.1f})"
        for count, own, other in zip(TOKENS, found.cuda_s, found.other_s, strict=True)
    )
    return f"; {ROWS} x {COLUMNS} weights take {', '.join(parts)}"


def _compared(name: str, error: Callable[[], float], largest: float) -> Check:
    try:
        deviation = error()
    except Exception as failure:  # noqa: BLE001 - a compiler or driver can raise anything
        return Check(name, "bad", str(failure).partition("\n")[0], _REPORT)
    is_right = deviation <= largest
    text = f"an error of {deviation:.1e}, up to {largest:.0e} is rounding"
    return Check(name, "ok" if is_right else "bad", text, "" if is_right else _REPORT)
