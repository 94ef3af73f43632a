"""
Claims of popular guides about data parallel training are tested.
"""

import pytest
import torch
import torch.distributed as dist
from ddp_shards import net, shard
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from worlds import run_world


def _drift(rank, world_size, wrapper):
    model = wrapper(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(shard(rank)).square().sum()
    loss.backward()
    optimizer.step()
    weight = model.module[0].weight.detach().clone()
    dist.broadcast(weight, src=0)
    return torch.equal(weight, model.module[0].weight)


def test_data_parallel_in_a_group_drifts_apart():
    """
    DataParallel does not use the process group, so weights differ after one step. With DDP they do
    not (claim C09).
    """
    assert run_world(2, _drift, nn.DataParallel) == [True, False]
    assert run_world(2, _drift, DistributedDataParallel) == [True, True]


def test_data_parallel_without_gpus_is_the_module_itself():
    """
    DataParallel splits a batch over the GPUs of one process. Without GPUs it only calls the module
    (claim C29).
    """
    if torch.cuda.is_available():
        pytest.skip("this is about machines without a GPU")
    seen = []
    module = nn.Linear(5, 5)
    module.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    model = nn.DataParallel(module)
    assert model.device_ids == []
    model(shard(0, num_samples=8))
    assert seen == [8]


def _reduce_the_loss(rank, world_size):
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 2.0)
    loss = model(torch.tensor([[4.0 * (rank + 1)]])).sum()
    loss.backward()
    before = model.weight.grad.item()
    reduced = loss.detach().clone()
    dist.reduce(reduced, dst=0)
    return before, model.weight.grad.item(), loss.item(), reduced.item()


def test_reducing_the_loss_does_not_synchronise_gradients():
    """
    Reducing the loss leaves each rank's gradients as they are, and turns rank 0's loss into a sum
    (claim C11).
    """
    seen = run_world(2, _reduce_the_loss)
    assert [grads[:2] for grads in seen] == [(4.0, 4.0), (8.0, 8.0)]
    assert [loss for _, _, loss, _ in seen] == [8.0, 16.0]
    assert seen[0][3] == 24.0
