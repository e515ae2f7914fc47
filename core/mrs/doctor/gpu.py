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

_REPORT = "python tests/gpu.py, in the source folder, tells more"


def examine_gpus() -> Iterator[Check]:
    """A check for each kind of kernel on each GPU; takes about a minute, mostly of compiling."""
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
    yield _of_cuda_kernels(device)
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


def _of_cuda_kernels(device: torch.device) -> Check:
    """Whether quantized weights are multiplied by the CUDA kernels; Triton's are the others."""
    from mrs.kernels.cuda.fragments import FRAGMENT_FORMATS
    from mrs.kernels.cuda.self_test import missing_reason, row_reason, unavailable_reason
    from mrs.quantization.gguf.fields import PLANE_LAYOUTS

    name = f"{device} CUDA kernels"
    if (reason := missing_reason(device)) is not None:
        text = f"other kernels are used: {reason}"
        return Check(name, "note", text, "install a CUDA build of torch, which brings NVRTC")
    layouts = {each: PLANE_LAYOUTS.get(each) for each in (*FRAGMENT_FORMATS, "BF16")}
    reason = unavailable_reason(device, layouts) or row_reason(device)
    if reason is not None:
        return Check(name, "bad", reason, _REPORT)
    return Check(name, "ok", f"products of {', '.join(layouts)} are right")


def _compared(name: str, error: Callable[[], float], largest: float) -> Check:
    try:
        deviation = error()
    except Exception as failure:  # noqa: BLE001 - a compiler or driver can raise anything
        return Check(name, "bad", str(failure).partition("\n")[0], _REPORT)
    is_right = deviation <= largest
    text = f"an error of {deviation:.1e}, up to {largest:.0e} is rounding"
    return Check(name, "ok" if is_right else "bad", text, "" if is_right else _REPORT)
