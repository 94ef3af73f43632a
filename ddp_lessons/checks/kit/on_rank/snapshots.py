"""
Picklable copies of values. A value that cannot be copied becomes the name of its type.
"""

import copyreg
import io
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

MAX_BYTES = 8 << 20
MAX_DEPTH = 6
_SCALARS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.Size)


@dataclass(frozen=True)
class Other:
    """
    A stand-in for a value that is not copied.

    Args:
        kind: The name of its type.
        why: The reason, or "".
    """

    kind: str
    why: str = ""

    def __repr__(self) -> str:
        return f"a {self.kind}{f' ({self.why})' if self.why else ''}"


def plain(value: object, depth: int = 0) -> Any:
    """
    Return a copy of a value that shares no memory with it and can be pickled.

    Tensors become dense ones on the CPU. A value that is neither tensor, number, text, list, tuple,
    set nor dictionary becomes an `Other`.
    """
    if isinstance(value, torch.Tensor):
        if value.numel() * value.element_size() > MAX_BYTES:
            return Other("tensor", f"{tuple(value.shape)}, too large to compare")
        return value.detach().to("cpu").to_dense().clone(memory_format=torch.contiguous_format)
    if isinstance(value, np.number | np.bool_):
        return value.item()  # a NumPy number counts as Python's
    if isinstance(value, _SCALARS):
        return value
    if depth == MAX_DEPTH:
        return Other(type(value).__name__, "nested too deep")
    for kind in (set, frozenset):  # also the sets of `hash_order`, which become Python's
        if isinstance(value, kind):
            return kind(plain(one, depth + 1) for one in value)
    if type(value) in (list, tuple):
        assert isinstance(value, list | tuple)
        return type(value)(plain(one, depth + 1) for one in value)
    if isinstance(value, tuple):
        return tuple(plain(one, depth + 1) for one in value)
    if isinstance(value, dict):
        return {plain(key, MAX_DEPTH): plain(one, depth + 1) for key, one in value.items()}
    return Other(type(value).__name__)


def tensors_in(value: object, depth: int = 0) -> list[torch.Tensor]:
    """
    Return the tensors in a value, also those in nested lists, tuples and dictionaries.
    """
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple) and depth < MAX_DEPTH:
        return [tensor for one in value for tensor in tensors_in(one, depth + 1)]
    return []


def share_memory(values: object, others: object) -> bool:
    """
    Tell whether a tensor in `values` shares memory with a tensor in `others`.
    """
    memory = {_memory(tensor) for tensor in tensors_in(values)} - {0}
    return any(_memory(tensor) in memory for tensor in tensors_in(others))


def _memory(tensor):
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0


def equal(one: object, other: object) -> bool:
    """
    Tell whether two plain values are the same: type, shape, dtype and every bit of a number.
    """
    if isinstance(one, torch.Tensor):
        return same_bits(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        assert isinstance(other, list | tuple)
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict):
        assert isinstance(other, dict)
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return one == other or (one != one and other != other)  # two NaNs


def same_bits(one: torch.Tensor, other: object) -> bool:
    """
    Tell whether two tensors have one dtype, one shape and the same bytes; NaN equals NaN.
    """
    if not isinstance(other, torch.Tensor) or (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    if not one.numel():
        return True
    one, other = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other))
    return bool((one == other).all())


def pickled(value: object) -> bytes:
    """
    Return a value as bytes that `pickle.loads` reads.

    torch writes a file for each tensor into the pickle, which takes twenty times as long as the
    tensor's bytes alone. A check pickles some hundred small tensors.
    """
    content = io.BytesIO()
    pickler = pickle.Pickler(content, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = {**copyreg.dispatch_table, torch.Tensor: _reduce}
    pickler.dump(value)
    return content.getvalue()


def _reduce(tensor):
    is_dense = tensor.layout is torch.strided and tensor.is_contiguous()
    if not is_dense or tensor.is_cuda or tensor.is_complex() or tensor.requires_grad:
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    content = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    return _restored, (content, tensor.dtype, tuple(tensor.shape))


def _restored(content, dtype, shape):
    numbers = torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0)
    return numbers.to(dtype).reshape(shape)
