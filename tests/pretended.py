"""A pretended device for torch: tensors on it cannot be mixed with the CPU's, as on a GPU.

torch's key for private devices is given Python kernels. A tensor on the device has a storage that holds
nothing; its numbers are in a CPU buffer of this module, which only the kernels here can reach. Every
operation is done on these buffers by the CPU's kernels, after a check that all tensors are on one device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils import backend_registration

NAME = "pretended"
KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
"""The kernels that make views: they look at sizes and strides, and never at numbers."""
calls: dict[str, int] = {}
"""How often each operation was called on the device."""
_buffers: dict[int, tuple[StorageWeakRef, Tensor]] = {}


class _Module:
    """What ``torch.get_device_module`` returns."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        pass

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.zeros(1)

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        pass

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


def _place(value: Tensor) -> Tensor:
    """Return a new tensor on the device with the numbers of a CPU tensor."""
    dense = value.contiguous()
    made = torch._C._acc.create_empty_tensor((dense.numel(),), dense.dtype)
    storage = made.untyped_storage()
    _buffers[storage._cdata] = (StorageWeakRef(storage), dense.reshape(-1))
    if len(_buffers) % 256 == 0:
        for key in [key for key, (reference, _) in _buffers.items() if reference.expired()]:
            del _buffers[key]
    return _view(made, dense.shape, dense.stride(), 0)


def _view(base: Tensor, shape: Any, strides: Any, offset: int) -> Tensor:
    return torch.ops.aten.as_strided.default.redispatch(KEYS, base, list(shape), list(strides), offset)


def _numbers(tensor: Tensor) -> Tensor:
    """Return the CPU view of a tensor on the device."""
    buffer = _buffers[tensor.untyped_storage()._cdata][1]
    if buffer.dtype != tensor.dtype:
        buffer = buffer.view(tensor.dtype)
    return torch.as_strided(buffer, tensor.shape, tensor.stride(), tensor.storage_offset())


def _is_there(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == NAME


def _check_devices(operation: Any, values: list[Any]) -> None:
    tensors = [value for value in values if isinstance(value, Tensor)]
    strangers = [each for each in tensors if not _is_there(each) and each.dim() > 0]
    if strangers and any(map(_is_there, tensors)):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two, {NAME}:0 and cpu "
            f"({operation})"
        )


def _dispatch(operation: Any, *arguments: Any, **named: Any) -> Any:
    """Do an operation of the device on the CPU."""
    name = operation._schema.name.removeprefix("aten::")
    calls[name] = calls.get(name, 0) + 1
    if name == "_copy_from":
        source, target = arguments[:2]
        reached = _numbers(target) if _is_there(target) else target
        reached.copy_(_numbers(source) if _is_there(source) else source)
        return target
    if operation.is_view:
        return operation.redispatch(KEYS, *arguments, **named)
    flat, structure = pytree.tree_flatten((arguments, named))
    _check_devices(operation, flat)
    inside = [_numbers(value) if _is_there(value) else value for value in flat]
    inside = [torch.device("cpu") if isinstance(v, torch.device) else v for v in inside]
    before = [value.shape if isinstance(value, Tensor) else None for value in inside]
    done_arguments, done_named = pytree.tree_unflatten(inside, structure)
    result = operation(*done_arguments, **done_named)
    for value, was, outer in zip(inside, before, flat, strict=True):
        if was is not None and value.shape != was:
            outer.data = _place(value)  # an empty ``out`` was given its size
    written = {id(now): was for now, was in zip(inside, flat, strict=True) if isinstance(now, Tensor)}

    def outside(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return written[id(value)] if id(value) in written else _place(value)

    return pytree.tree_map(outside, result)


def _convolve(*arguments: Any) -> Any:
    return _dispatch(torch.ops.aten.convolution.default, *arguments)


def _convolve_back(gradient: Tensor, inputs: Tensor, weight: Tensor, *settings: Any) -> Any:
    sizes = [weight.shape[0]]
    return _dispatch(torch.ops.aten.convolution_backward.default, gradient, inputs, weight, sizes, *settings)


def register() -> None:
    """Make ``torch.device("pretended")`` known; once per process."""
    global _library, _convolutions
    if torch._C._get_privateuse1_backend_name() == NAME:
        return
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    _library = torch.library.Library("_", "IMPL")
    _library.fallback(_dispatch, "PrivateUse1")
    _convolutions = torch.library.Library("aten", "IMPL")
    _convolutions.impl("convolution_overrideable", _convolve, "PrivateUse1")
    _convolutions.impl("convolution_backward_overrideable", _convolve_back, "PrivateUse1")


_library: Any = None
_convolutions: Any = None
