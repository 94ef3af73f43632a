"""
Reading tensors whose layout differs between file and memory.
"""

import pytest
import torch
import torch.distributed.checkpoint as dcp

from ddp_lessons.checkpoint.safe import SafePlanner, SafeReader


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "target",
    [torch.zeros(4, 6), torch.zeros(6, 4).t(), torch.zeros(4, 6, dtype=torch.float64)],
    ids=["alike", "transposed", "another dtype"],
)
def test_tensor_is_read_whatever_its_place_in_memory(tmp_path, target):
    """
    A tensor is read correctly into a transposed one and into one of another dtype. Copying the
    bytes in file order would be wrong there.
    """
    target = target.clone()
    saved = torch.arange(24.0).reshape(4, 6)
    dcp.save({"weights": saved}, checkpoint_id=tmp_path, no_dist=True)
    loaded = {"weights": target}
    dcp.load(loaded, storage_reader=SafeReader(tmp_path), planner=SafePlanner(), no_dist=True)
    assert torch.equal(loaded["weights"].float(), saved)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0), (2, 3)])
def test_tensors_that_are_alike_keep_their_own_numbers(tmp_path, shape):
    """
    Tensors of one shape and dtype keep their own values, although their description is read once
    for all.
    """
    saved = {name: torch.full(shape, float(number)) for number, name in enumerate("abc")}
    dcp.save(saved, checkpoint_id=tmp_path, no_dist=True)
    loaded = {name: torch.full(shape, -1.0) for name in saved}
    dcp.load(loaded, storage_reader=SafeReader(tmp_path), planner=SafePlanner(), no_dist=True)
    assert all(torch.equal(loaded[name], saved[name]) for name in saved)
