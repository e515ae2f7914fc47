"""A GPU that is not there: tensors on it have shapes, types and a device, but no values.

The CPU is real. What a GPU refuses, or does slowly, raises: arithmetic with tensors of two devices,
shapes that depend on values, and values that the host reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, final

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
Shape = tuple[int, ...]
#: Operations of torch that start nothing on the GPU.
_NO_LAUNCH = {
    *("view", "reshape", "slice", "select", "unsqueeze", "squeeze", "expand", "transpose", "t"),
    "numpy_T",
    *("permute", "as_strided", "unbind", "split", "split_with_sizes", "chunk", "flatten", "to"),
    *("empty", "new_empty", "empty_like", "detach", "alias", "device", "_unsafe_view"),
}


class HostRead(Exception):
    """The host reads a value of a GPU, and has to wait for it."""


@dataclass
class Traffic:
    """The shapes of all copies between GPUs and the host, and a line for each operation.

    `launched` are those operations that start something on a GPU, but for copies from and to the
    host. `allocated` are the shapes of new tensors on GPUs, and `reads` the memory that operations
    use and none of them has allocated.
    """

    to_host: list[Shape] = field(default_factory=list)
    from_host: list[Shape] = field(default_factory=list)
    between_gpus: list[Shape] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)
    launched: list[str] = field(default_factory=list)
    allocated: list[Shape] = field(default_factory=list)
    reads: set[int] = field(default_factory=set)
    _own: set[int] = field(default_factory=set, compare=False)

    def add_memory(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Count what an operation reads and allocates."""
        known = {_storage(x) for x in inputs if isinstance(x, FakeTensor)}
        self.reads |= known - self._own
        for x in outputs:
            if isinstance(x, FakeTensor) and _storage(x) not in known:
                self._own.add(_storage(x))
                self.allocated.append(tuple(x.shape))


@final
class FakeGpu:
    """While it is entered, tensors can be made on GPUs: `traffic` says what happened there.

    A copy to the CPU is a real tensor of zeros. It is too old a GPU for Triton.
    """

    def __init__(self) -> None:
        self.traffic = Traffic()
        self._stack = ExitStack()

    def __enter__(self) -> FakeGpu:
        patch = self._stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(torch.cuda, "get_device_capability", lambda device=None: (0, 0))
        self._stack.enter_context(_Operations(self))
        self._stack.enter_context(_PythonCalls())
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.__exit__(*error)

    def record(self) -> Traffic:
        """What happens from now on."""
        self.traffic = Traffic()
        return self.traffic


class _Operations(FakeTensorMode):
    """Operations on GPUs are those of FakeTensorMode, all others are real.

    FakeTensorMode asks for the parts of an operation only where it has not cached its result, so
    that parts are not counted.
    """

    def __init__(self, gpu: FakeGpu) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._gpu = gpu
        self._is_part = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        if not any(isinstance(x, FakeTensor) or _is_gpu(x) for x in leaves):
            return func(*args, **kwargs)
        devices = {x.device for x in leaves if isinstance(x, Tensor)}
        if func is aten._to_copy.default and "device" in kwargs:
            devices.add(kwargs["device"])
            if kwargs["device"].type == "cpu":
                return self._to_host(args[0], kwargs)
        if func is aten.copy_.default and args[0].device.type == "cpu":
            self._gpu.traffic.to_host.append(tuple(args[1].shape))
            return args[0].zero_()
        self._count(str(func), devices, leaves)
        is_part, self._is_part = self._is_part, True
        try:
            out = super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            self._is_part = is_part
        if not is_part:
            self._gpu.traffic.add_memory(leaves, tree_leaves(out))
        return out

    def _to_host(self, source: Tensor, kwargs: dict[str, Any]) -> Tensor:
        self._gpu.traffic.to_host.append(tuple(source.shape))
        return torch.zeros(source.shape, dtype=kwargs.get("dtype") or source.dtype)

    def _count(self, name: str, devices: set[torch.device], leaves: Sequence[Any]) -> None:
        traffic, shape = self._gpu.traffic, _largest_shape(leaves)
        if len(devices) > 1:
            is_host = any(device.type == "cpu" for device in devices)
            (traffic.from_host if is_host else traffic.between_gpus).append(shape)
        if not self._is_part:
            traffic.operations.append(" ".join((name, *map(_spelled, leaves))))
            if starts_kernel(name, leaves):
                traffic.launched.append(name)


class _PythonCalls(TorchFunctionMode):
    """Calls that ask torch for a driver of the GPU before they reach any mode."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        subject = args[0] if args else None
        is_fake = isinstance(subject, FakeTensor)
        if func is Tensor.to or func is Tensor.cpu:
            to = ("cpu",) if func is Tensor.cpu else args[1:]
            return _to(args[0], *to, **kwargs)
        if func is torch.tensor and (device := kwargs.pop("device", None)) is not None:
            return _to(torch.tensor(*args, **kwargs), device)
        if is_fake and func in _READS:
            raise HostRead(f"{func.__name__} of a tensor on {subject.device}")
        if is_fake and func in _REPLACED:
            return _REPLACED[func](*args, **kwargs)
        return func(*args, **kwargs)


_READS = (
    Tensor.item,
    Tensor.tolist,
    Tensor.numpy,
    Tensor.nonzero,
    torch.nonzero,
    Tensor.__bool__,
    Tensor.__int__,
    Tensor.__float__,
    Tensor.__index__,
)


def _to(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    if args and isinstance(args[0], Tensor):
        args = (args[0].device, args[0].dtype)
    device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
    if device is None and not isinstance(x, FakeTensor):
        return x if dtype is None else aten._to_copy.default(x, dtype=dtype)
    device, dtype = device or x.device, dtype or x.dtype
    if device.type == "mps" and device.index is None:
        device = torch.device("mps", 0)
    if (device, dtype) == (x.device, x.dtype):
        return x
    return aten._to_copy.default(x, dtype=dtype, device=device, non_blocking=non_blocking)


def _select(x: Tensor, index: Any) -> tuple[Tensor, list[Tensor | None]]:
    """The view of x that ints, slices and new axes select, and the indices that are tensors."""
    indices = list(index) if isinstance(index, tuple) else [index]
    if any(i is Ellipsis for i in indices):
        at = next(n for n, i in enumerate(indices) if i is Ellipsis)
        rest = x.dim() - sum(i is not None for i in indices) + 1
        indices[at : at + 1] = [slice(None)] * rest
    axis, tensors = 0, []
    for each in indices:
        if each is None:
            x = aten.unsqueeze.default(x, axis)
        elif isinstance(each, slice):
            if each != slice(None):
                x = aten.slice.Tensor(x, axis, each.start, each.stop, each.step or 1)
        elif isinstance(each, int):
            x = aten.select.int(x, axis, each)
            continue
        else:
            tensors += [None] * (axis - len(tensors))
            tensors.append(each if isinstance(each, Tensor) else _to(_indices(each), x.device))
        axis += 1
    for each in tensors:
        if each is not None and each.device != x.device:
            raise RuntimeError(f"a tensor on {x.device} has an index on {each.device}")
        if each is not None and each.dtype in (torch.bool, torch.uint8):
            raise HostRead("the number of values that a mask selects")
    return x, tensors


def _indices(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.long)


def _get(x: Tensor, index: Any) -> Tensor:
    view, tensors = _select(x, index)
    return aten.index.Tensor(view, tensors) if tensors else view


def _set(x: Tensor, index: Any, value: Any) -> None:
    view, tensors = _select(x, index)
    if not tensors:
        fill = aten.copy_ if isinstance(value, Tensor) else aten.fill_
        fill(view, value)
    else:
        assert isinstance(value, Tensor)
        aten.index_put_.default(view, tensors, value)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any
) -> Tensor:
    scores = q @ k.transpose(-1, -2)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = torch.where(attn_mask, scores, scores)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores @ v


def _interpolate(x: Tensor, size: tuple[int, int], **options: Any) -> Tensor:
    """That with antialiasing, of the same shape: for others FakeTensorMode asks for a driver."""
    return aten._upsample_bilinear2d_aa.default(x, size, False)


def _new_empty(x: Tensor, *size: Any, **options: Any) -> Tensor:
    size = size[0] if isinstance(size[0], Sequence) else size
    return torch.empty(size, **{"dtype": x.dtype, "device": x.device, **options})


_REPLACED: dict[Any, Any] = {
    Tensor.new_empty: _new_empty,
    Tensor.copy_: aten.copy_.default,
    Tensor.contiguous: lambda x: aten.clone.default(x, memory_format=torch.contiguous_format),
    Tensor.data_ptr: lambda x: 0,  # an address is no value: the host has it
    Tensor.__invert__: aten.bitwise_not.default,
    Tensor.__getitem__: _get,
    Tensor.__setitem__: _set,
    torch.nn.functional.interpolate: _interpolate,
    torch.nn.functional.scaled_dot_product_attention: _attention,
}


def starts_kernel(name: str, leaves: Sequence[Any]) -> bool:
    """Whether an operation such as `aten.mul.Tensor`, with these arguments, starts a kernel."""
    operation, tensors = name.split(".")[1], [x for x in leaves if isinstance(x, Tensor)]
    if operation in _NO_LAUNCH or any(x.is_cpu for x in tensors):
        return False
    # `contiguous` of the fake GPU is a copy of what is contiguous, too.
    return operation != "clone" or not tensors[0].is_contiguous()


def _storage(x: Tensor) -> int:
    """An identifier of the memory that a tensor is a view of."""
    return int(x.untyped_storage()._cdata)


def _is_gpu(x: object) -> bool:
    return isinstance(x, torch.device) and x.type not in ("cpu", "meta")


def _largest_shape(leaves: Sequence[Any]) -> Shape:
    shapes = [tuple(x.shape) for x in leaves if isinstance(x, Tensor)]
    return max(shapes, key=lambda shape: torch.Size(shape).numel(), default=())


def _spelled(x: object) -> str:
    if isinstance(x, Tensor):
        return f"{x.dtype} {tuple(x.shape)} on {x.device}"
    return repr(x)
