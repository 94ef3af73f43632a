"""
Parts of a tensor that do not lie in the file as in memory are read by torch's own way.
"""

import pytest
import torch
import torch.distributed.checkpoint as dcp

from ddp_lessons.checkpoint import safe
from ddp_lessons.checkpoint.safe import SafePlanner, SafeReader


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "target",
    [torch.zeros(4, 6), torch.zeros(6, 4).t(), torch.zeros(4, 6, dtype=torch.float64)],
    ids=["alike", "transposed", "another dtype"],
)
@pytest.mark.parametrize("large_bytes", [0, safe.LARGE_BYTES])
def test_tensor_is_read_whatever_its_place_in_memory(tmp_path, monkeypatch, target, large_bytes):
    """
    Numbers that lie otherwise must not be filled in as they come. A small part is not looked at.
    """
    monkeypatch.setattr(safe, "LARGE_BYTES", large_bytes)
    target = target.clone()
    saved = torch.arange(24.0).reshape(4, 6)
    dcp.save({"weights": saved}, checkpoint_id=tmp_path, no_dist=True)
    loaded = {"weights": target}
    dcp.load(loaded, storage_reader=SafeReader(tmp_path), planner=SafePlanner(), no_dist=True)
    assert torch.equal(loaded["weights"].float(), saved)
