"""
The values that a check records on a rank reach the kernel unchanged.
"""

import pickle

import pytest
import torch
from torch import nn

from ddp_lessons.checks.kit.on_rank.snapshots import pickled

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8,
    torch.bool, torch.complex64,
)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (2, 3)])
def test_a_tensor_travels_with_its_bits(dtype, shape):
    """
    A tensor keeps its bits, whatever its dtype, shape and layout.
    """
    tensor = torch.arange(6).to(dtype)[: torch.Size(shape).numel()].reshape(shape)
    for sent in (tensor, tensor.t() if tensor.dim() == 2 else tensor):
        got = pickle.loads(pickled({"x": [sent]}))["x"][0]
        assert (got.dtype, got.shape) == (sent.dtype, sent.shape)
        assert got.is_contiguous() == sent.is_contiguous()
        assert torch.equal(got, sent)
        got.zero_()  # the memory is not shared


def test_what_a_tensor_is_beside_its_numbers_travels_too():
    """
    Other properties of tensors are kept too: requires_grad, infinities, and that two entries are
    the same tensor.
    """
    weight = nn.Parameter(torch.tensor([1.0, float("inf"), float("nan")]))
    leaf = torch.ones(2, requires_grad=True)
    got = pickle.loads(pickled({"weight": weight, "leaf": leaf, "same": [leaf, leaf]}))
    assert isinstance(got["weight"], nn.Parameter)
    assert got["weight"].isnan().tolist() == [False, False, True]
    assert got["leaf"].requires_grad
    assert got["same"][0] is got["same"][1] is got["leaf"]
