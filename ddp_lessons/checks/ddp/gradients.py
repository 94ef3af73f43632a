"""
The inputs of the hook in task 06.1: gradients whose averages show each mistake, and delayed ranks.

Legend: w ranks; N numbers in all gradients; S steps.
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn

from ddp_lessons.checks.kit import normal_numbers, whole_numbers
from ddp_lessons.checks.kit.deadline import Deadline
from ddp_lessons.private.dispatcher import future_class

NUM_STEPS, LATE_STEP = 5, 2
HELD_STEPS = (0, LATE_STEP)
_BEYOND_FLOAT16 = 2.0**27  # bfloat16's rounding error of such numbers is beyond float16, too
_SMALL, _LARGE = 2.0**-12, 2.0**10
_HELD_S = 1.0
_LOOK_EVERY_S = 0.002


class Parts(nn.Module):
    """
    A model whose forward gets tensors that become the gradients of its parameters.

    Args:
        case: The Case, with the `lengths` of the parameters and their `dtype`.
    """

    def __init__(self, case):
        super().__init__()
        dtype = getattr(torch, case["dtype"])
        self.parts = nn.ParameterList(
            [nn.Parameter(torch.zeros(length, dtype=dtype)) for length in case["lengths"]]
        )

    def forward(self, gradients):
        """
        Return a number whose gradient with respect to parameter i is gradients[i].
        """
        return sum((p * g).sum() for p, g in zip(self.parts, gradients, strict=True))


class Kinds:
    """
    The kinds of numbers in the gradients, as boolean masks (N,).

    Args:
        case: The Case.

    Attributes:
        shared: Numbers that all ranks have.
        early: Numbers that one rank has in the first step, some of them small and the others large.
        small: The small numbers among `early`.
        late: Numbers that one rank has in step `LATE_STEP`.
        twice: Numbers that one rank has in step `LATE_STEP` and the next, which finds a residual.
        alike: Numbers of parameters that have the same length as another parameter.
        owner: Not a mask: for each number the rank that has it, if it is not shared.
    """

    def __init__(self, case):
        lengths = case["lengths"]
        places = torch.arange(sum(lengths))
        self.shared, self.early = places % 5 < 2, places % 5 == 2
        self.late, self.twice = places % 5 == 3, places % 5 == 4
        self.owner = places // 5 % case.world_size
        self.small = self.early & (places // 5 // case.world_size % 2 == 1)
        self.alike = torch.cat(
            [torch.full((one,), lengths.count(one) > 1, dtype=torch.bool) for one in lengths]
        )


def gradients_of(case, rank):
    """
    Return the gradients of a rank in each step, (S, N).

    Shared numbers are whole, so their averages are exact in half precision. Each other number
    belongs to one rank, so the sum over ranks is not rounded. In later steps its gradient is zero,
    so that only its residual is sent.
    """
    dtype, kinds = getattr(torch, case["dtype"]), Kinds(case)
    num = len(kinds.shared)
    numbers = normal_numbers(case, rank, (num,), dtype)
    whole = whole_numbers(case, rank, (NUM_STEPS, num), dtype)
    given = torch.zeros(NUM_STEPS, num, dtype=dtype)
    given[:, kinds.shared] = case.world_size * whole[:, kinds.shared]
    early, twice = (mask & (kinds.owner == rank) for mask in (kinds.early, kinds.twice))
    late = twice | kinds.late & (kinds.owner == rank)
    given[0, early] = numbers[early]
    given[0, early] *= torch.where(kinds.small, _SMALL, _LARGE).to(dtype)[early]
    given[LATE_STEP, late] = numbers[late] * _BEYOND_FLOAT16
    given[LATE_STEP + 1, twice] = given[LATE_STEP, twice]
    return given


class LateMessages:
    """
    Delays by which one rank starts the hook of a bucket only after the others have left theirs.

    A hook that waits for its message then blocks, which shows on each rank that waits. A future
    that is done when its hook returns was done before the message could arrive. Ranks take turns in
    being late.

    Collective: every rank of the case must create it.

    Args:
        context: The rank context.

    Attributes:
        num_stuck: How often this rank was late and the others did not leave their hooks.
        num_early: Number of futures that were done before the last rank had sent anything.
    """

    def __init__(self, context):
        self._here = context
        self._folder = context.folder / f"late-{context.case.seed}"
        self._folder.mkdir(exist_ok=True)
        self._pids: list = [None] * context.world_size
        dist.all_gather_object(self._pids, os.getpid())
        self.num_stuck = self.num_early = 0

    def call(self, hook, state, bucket, step):
        """
        Call a hook, with a delay if it is this rank's turn, and return its result.
        """
        context, others = self._here, range(self._here.world_size)
        late = bucket.index() % context.world_size
        if step not in HELD_STEPS or context.device.type != "cpu" or context.world_size == 1:
            return hook(state, bucket)  # on a GPU, no hook blocks: its waits are in a stream
        place = f"{step}-{bucket.index()}"
        stuck = self._folder / "stuck"
        if context.rank == late:
            left = [self._folder / f"{place}-{rank}" for rank in others if rank != late]
            if not self._all_come(left, stuck):
                self.num_stuck += 1
                stuck.touch()
            return hook(state, bucket)
        future = hook(state, bucket)
        is_done = isinstance(future, future_class()) and future.done()
        self.num_early += is_done and not stuck.exists()
        (self._folder / f"{place}-{context.rank}").touch()
        return future

    def _all_come(self, files, stuck):
        others = [pid for pid in self._pids if pid != os.getpid()]  # this rank only polls
        deadline = Deadline(_HELD_S, lambda: others)
        while not all(file.exists() for file in files):
            if stuck.exists() or deadline.is_over:
                return stuck.exists()
            time.sleep(_LOOK_EVERY_S)
        return True
