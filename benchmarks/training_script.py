"""
Train under DDP, as a script under `torchrun`. The part above `main` is also the text of a cell.

    torchrun --standalone --nproc-per-node 2 benchmarks/training_script.py

Each line of standard input holds a size of `digits_model` and a number of steps. For each line the
script prints the seconds of a step. It ends when its input ends.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddp_lessons.workloads import DIGITS_WIDTHS, digits_batch, digits_model, load_digits

NUM_SAMPLES = 64
NUM_SETTLING = 20
torch.set_num_threads(1)


def prepare(size):
    """
    Return a function that does one training step of the model of this size.
    """
    model = DistributedDataParallel(digits_model(seed=0, size=size))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = digits_batch(load_digits(), NUM_SAMPLES, rank=dist.get_rank())

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def step_s(step, num_steps):
    """
    Return the seconds of a step on the slowest rank: the mean of `num_steps` steps after a barrier.

    `NUM_SETTLING` steps are done before that. While they run, the controller and the kernel still
    report that the cell has begun, on cores that the ranks need. That is a cost of a cell, not of
    a step.
    """
    for _ in range(NUM_SETTLING):
        step()
    dist.barrier()
    began = time.perf_counter()
    for _ in range(num_steps):
        step()
    seconds = torch.tensor((time.perf_counter() - began) / num_steps, dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds.item()


# The cell ends here.


def main():
    """
    Do the steps that rank 0 reads from standard input, on every rank.
    """
    dist.init_process_group("gloo")
    sizes, steps = list(DIGITS_WIDTHS), {}
    while True:
        wish = [-1, 0]
        if dist.get_rank() == 0:
            line = sys.stdin.readline().split()  # other ranks wait in the broadcast
            wish = [sizes.index(line[0]), int(line[1])] if line else wish
        number, num_steps = _from_rank_0(wish)
        if number < 0:
            break
        size = sizes[number]
        if size not in steps:
            steps[size] = prepare(size)
        seconds = step_s(steps[size], num_steps)
        if dist.get_rank() == 0:
            print(seconds, flush=True)
    dist.barrier()  # a rank that leaves while others still receive makes them fail
    dist.destroy_process_group()


def _from_rank_0(numbers):
    shared = torch.tensor(numbers)
    dist.broadcast(shared, 0)
    return shared.tolist()


if __name__ == "__main__":
    main()
