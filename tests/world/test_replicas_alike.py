"""
The tensors of all ranks, the number of different ones, and the distance between replicas.
"""

import pytest
import torch
from worlds import WORLD_SIZES, run_world

from ddp_lessons.replicas import num_different, of_all_ranks, replica_distance


def _compare(rank, world_size):
    mine = torch.arange(6.0).reshape(2, 3).t().requires_grad_() + rank // 2
    everyone = of_all_ranks(mine)
    return everyone.tolist(), everyone.requires_grad, num_different(mine)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_all_ranks_see_what_each_holds(world_size):
    """
    Lessons count different models and gradients with these functions. Here ranks 0 and 1 have one
    tensor, and ranks 2 and 3 another.
    """
    expected = torch.stack(
        [torch.arange(6.0).reshape(2, 3).t() + r // 2 for r in range(world_size)]
    )
    for everyone, has_gradient, num in run_world(world_size, _compare):
        assert everyone == expected.tolist()
        assert not has_gradient
        assert num == -(-world_size // 2)


def _distance(rank, world_size):
    model = torch.nn.Linear(2, 1)
    torch.nn.init.ones_(model.weight)
    torch.nn.init.constant_(model.bias, 2 * rank)
    apart = replica_distance(model)
    torch.nn.init.zeros_(model.bias)
    return apart, replica_distance(model)


def test_distance_of_replicas_is_that_of_their_parameters():
    """
    The distance is that of the parameters: rank 2 is 4 away from rank 0, and rank 1 is 2 away.
    Equal replicas have distance 0.0, to the last bit.
    """
    assert run_world(3, _distance) == [(pytest.approx(20**0.5), 0.0)] * 3
