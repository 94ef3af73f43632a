"""
Measure when gradients and messages of a training step come, and how much backward hides of them.
"""

import time

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddp_lessons.ddp import Overlap, overlap, rebuilt_buckets


class _Clock:
    """
    The times of the gradients and of the messages in one step of a replica of ours.
    """

    def __init__(self, replica):
        self.ready_s, self.begun_s, self.ended_s = [], [], []
        for parameter in replica.parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda _: self.ready_s.append(time.perf_counter())
            )

    def __enter__(self):
        self._all_reduce = dist.all_reduce
        dist.all_reduce = self._note
        return self

    def __exit__(self, *_):
        dist.all_reduce = self._all_reduce

    def _note(self, tensor, *args, async_op=False, **kwargs):
        self.begun_s.append(time.perf_counter())
        work = self._all_reduce(tensor, *args, async_op=True, **kwargs)
        work.get_future().then(lambda _: self.ended_s.append(time.perf_counter()))
        if async_op:
            return work
        work.wait()
        return None

    @property
    def overlap(self):
        """
        The Overlap of the step. By DDP's rule, communication lasts from the start of the first
        message to the end of the last one.
        """
        begun_s, ready_s = min(self.begun_s), max(self.ready_s)
        backward_s = ready_s - min(self.ready_s)  # from its first gradient on
        return Overlap(backward_s, max(self.ended_s) - begun_s, max(0, ready_s - begun_s))


def look_inside(replica, step, num_steps=5):
    """
    Return how many collectives a step has, and an Overlap for each of some steps.

    DDP reports its own timers. A replica of ours is timed where it calls all_reduce. Both cost
    time, so these steps count in no other figure.

    Args:
        replica: A DistributedDataParallel, or a replica of ours.
        step: Function that does one training step of the replica.
        num_steps: Number of steps.
    """
    overlaps = []
    if isinstance(replica, DistributedDataParallel):
        replica._set_ddp_runtime_logging_sample_rate(1)
        for _ in range(num_steps + 1):  # DDP reports a step when the next one begins
            step()
            overlaps.append(overlap(replica))
        return len(rebuilt_buckets(replica)), overlaps[1:]
    with _Clock(replica) as clock:
        for _ in range(num_steps):
            clock.ready_s, clock.begun_s, clock.ended_s = [], [], []
            step()
            dist.barrier()
            overlaps.append(clock.overlap)
    return len(clock.begun_s), overlaps
