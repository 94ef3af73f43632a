"""
Parameters that backward does not reach: on which ranks, and DDP's error.
"""

import pytest
import torch
from ddp_shards import shard
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from worlds import run_world

from ddp_lessons.ddp import (
    unused_by_rank,
    unused_parameters,
)


class Forked(nn.Module):
    """
    A model with two branches, of which forward takes one.

        A weight of the right branch is tied to the trunk, and `spare` is never used.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(5, 5)
        self.left = nn.Linear(5, 5)
        self.right = nn.Linear(5, 5)
        self.right.weight = self.trunk.weight
        self.spare = nn.Parameter(torch.ones(2))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x, branch):
        hidden = self.trunk(x)
        return {"out": getattr(self, branch)(hidden), "aux": [hidden, None, 3]}


def test_unused_parameters_names_what_backward_would_not_reach():
    """
    `unused_parameters` names the parameters whose gradient is None after backward, but no frozen or
    tied ones.
    """
    model = Forked()
    outputs = model(shard(0), "right")
    assert unused_parameters(model, outputs) == ["spare", "left.weight", "left.bias"]
    assert unused_parameters(model, outputs["aux"]) == [
        "spare",
        "left.weight",
        "left.bias",
        "right.bias",
    ]
    assert unused_parameters(model, model.spare)[-1] == "right.bias", "an output may be a parameter"
    outputs["out"].sum().backward()
    without = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert unused_parameters(model, model(shard(0), "right")) == without


def _unused_by_rank(rank, world_size):
    model = Forked()
    return unused_by_rank(model, model(shard(rank), "left" if rank == 1 else "right"))


def test_unused_by_rank_says_who_leaves_out_what():
    """
    `unused_by_rank` names the ranks of each unused parameter. A branch that only one rank takes is
    no mistake of the model, and needs another remedy.
    """
    expected = {
        "left.weight": [0, 2], "left.bias": [0, 2], "right.bias": [1], "spare": [0, 1, 2],
    }  # fmt: skip
    assert run_world(3, _unused_by_rank) == [expected] * 3


def _ddp_and_unused(rank, world_size):
    strict = DistributedDataParallel(Forked())
    strict(shard(rank), "left")["out"].sum().backward()
    with pytest.raises(RuntimeError) as refused:
        strict(shard(rank), "left")
    patient = DistributedDataParallel(Forked(), find_unused_parameters=True)
    for _ in range(2):
        patient(shard(rank), "left")["out"].sum().backward()
    unused = unused_parameters(patient.module, patient.module(shard(rank), "left"))
    grads = {name: p.grad for name, p in patient.module.named_parameters()}
    return str(refused.value), all(grads[name] is None for name in unused), unused


def test_ddp_refuses_unused_parameters_unless_told_to_find_them():
    """
    DDP refuses unused parameters, but one forward late and by number. The graph shows them before
    backward, and by name.
    """
    for refused, left_alone, unused in run_world(2, _ddp_and_unused):
        assert "Expected to have finished reduction in the prior iteration" in refused
        assert left_alone
        assert unused == ["spare", "right.bias"]
