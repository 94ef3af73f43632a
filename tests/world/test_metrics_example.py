"""
The numbers that the lesson evaluates do not depend on the split of the samples.
"""

import pytest
import torch
from metric_shards import packed, part_of, run_packed

from ddp_lessons.metrics import with_sync_batch_norm
from ddp_lessons.metrics.example import evaluate, first_gradient, numbers_of_all, numbers_of_rank
from ddp_lessons.workloads import batch_norm_model, digits_model, load_digits


def _numbers(rank, world_size):
    digits = load_digits()
    whole = digits.test_images[:40], digits.test_labels[:40]
    own = [part_of(one, rank, world_size) for one in whole]
    model = digits_model(seed=0)
    together = numbers_of_all(*evaluate(model, *own))
    layers = [with_sync_batch_norm(batch_norm_model(seed=0)), batch_norm_model(seed=0)]
    gradients = [first_gradient(layers[0], *own), first_gradient(layers[1], *whole)]
    torch.distributed.all_reduce(gradients[0])
    return packed((together, numbers_of_rank(*evaluate(model, *whole)), gradients))


@pytest.mark.parametrize("world_size", [1, 3])
def test_lesson_finds_what_one_process_finds(world_size):
    """
    The ranks together find the numbers of one process, also if a rank has no samples.
    """
    for together, alone, (ours, right) in run_packed(world_size, _numbers):
        # the batches differ, so losses in float32 are summed in another order
        assert together == pytest.approx(alone, rel=100 * torch.finfo(torch.float32).eps)
        assert (ours - right).norm() < 1e-12 * right.norm()
