"""Tells tensors and threads whose calls may bypass PyTorch's dispatcher from all others.

A *plain* tensor is a dense `Tensor` or `Parameter`, but of no other subclass, on a CPU or a CUDA
GPU, and not wrapped by a transform such as vmap. A *plain* thread is in no mode, transform or trace
of PyTorch, and computes no tangents.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
    "DEVICES",
    "KEYS",
    "KEYS_ON_GPU",
    "KNOWN",
    "TYPES",
    "dispatch_keys",
    "is_plain_thread",
    "records",
]

DEVICES = ("cpu", "cuda")
"""Types of devices for which the operators have kernels."""
TYPES = frozenset((Tensor, torch.nn.Parameter))
"""The types that a plain tensor may have. A tensor of any other subclass may override operators."""


def _numbers(*sets: tuple[str, ...]) -> frozenset[int]:
    """For each group of names of PyTorch's dispatch keys: the group's bit set as a number."""
    numbers: list[int] = []
    for names in sets:
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Undefined)
        for name in names:
            keys = keys | torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name))
        numbers.append(keys.raw_repr())
    return frozenset(numbers)


def _of_tensors(device: str) -> frozenset[int]:
    """The sets of dispatch keys of plain tensors on a device; inference tensors have fewer keys."""
    every = (device, "ADInplaceOrView", f"Autograd{device}", f"Autocast{device}")
    return _numbers(every, (device, f"Autocast{device}"))


try:
    # A tensor that has another dispatch key is sparse, nested, lazily negated, without memory, on
    # another device, or wrapped by a transform such as vmap.
    KEYS_ON_GPU = _of_tensors("CUDA")
    KEYS = KEYS_ON_GPU | _of_tensors("CPU")
    # The dispatch keys that PyTorch adds to a thread's calls. A thread with any other set is in a
    # dispatch mode, a transform or a trace. The shorter set is that of `torch.inference_mode`.
    _STATES = _numbers(("BackendSelect", "ADInplaceOrView"), ("BackendSelect",))
    _keys = torch._C._dispatch_keys
    _state = torch._C._dispatch_tls_local_include_set
    _is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
    _autograd = torch._C.DispatchKey.AutogradFunctionality
    _in_function_mode = torch._C._is_torch_function_mode_enabled
    _forward_mode = torch.autograd.forward_ad
    _known = _forward_mode._current_level is not None
except AttributeError:
    _known = False
KNOWN = _known
"""KNOWN: whether this version of PyTorch has the functions that tell plain tensors and threads from
others. KEYS, KEYS_ON_GPU: the possible `dispatch_keys` of plain tensors, on GPUs for the latter."""


def dispatch_keys(x: Tensor) -> int:
    """The set of a tensor's dispatch keys as a number."""
    return _keys(x).raw_repr()


def is_plain_thread() -> bool:
    """Whether this thread is in no mode, transform or trace of PyTorch, and computes no tangents.

    The result is False if `KNOWN` is False. Dynamo cannot trace this function, so callers ask
    `torch.compiler.is_compiling` first.
    """
    return (
        KNOWN
        and not _in_function_mode()
        and _forward_mode._current_level < 0
        and _state().raw_repr() in _STATES
    )


def records() -> bool:
    """Whether PyTorch records operations on tensors that require a gradient.

    It does not under `torch.no_grad`, nor where the dispatch key of autograd is excluded.
    """
    return torch.is_grad_enabled() and not _is_excluded(_autograd)
