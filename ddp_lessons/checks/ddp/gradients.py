"""
What the hook of exercise 06 gets: gradients whose averages show each mistake, and late messages.

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
_BEYOND_FLOAT16 = 2.0**27  # what bfloat16 leaves of such numbers is beyond float16, too
_SMALL, _LARGE = 2.0**-12, 2.0**10
_HELD_S = 1.0
_LOOK_EVERY_S = 0.002


class Parts(nn.Module):
    """
    Have parameters whose gradients are the tensors that forward gets.

    Args:
        case: The Case, with `lengths` and a `dtype`.
    """

    def __init__(self, case):
        super().__init__()
        dtype = getattr(torch, case["dtype"])
        self.parts = nn.ParameterList(
            [nn.Parameter(torch.zeros(length, dtype=dtype)) for length in case["lengths"]]
        )

    def forward(self, gradients):
        """
        Return a number whose gradient by part i is gradients[i].
        """
        return sum((p * g).sum() for p, g in zip(self.parts, gradients, strict=True))


class Kinds:
    """
    Say which numbers of the gradients show what; all are masks (N,).

    Args:
        case: The Case.

    Attributes:
        shared: Numbers of all ranks.
        early: Numbers of one rank's first step, some of them small and the others large.
        small: The small ones.
        late: Numbers of one rank's later step.
        twice: Numbers of one rank's later step and of the next, which finds a debt there.
        alike: Numbers of parameters of which others have the same length.
        owner: The rank of each that belongs to one.
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
    Return what backward gives a rank in each step, (S, N).

    All ranks have whole numbers, of which averages are exact in half precision. Of the others each
    belongs to one rank, so that adding up rounds nothing. Later steps have zeros and pay its debt.
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
    Have one rank come late to each bucket: only after the others have left their hooks.

    So a hook that waits for its message, in whatever way, is found on every rank that does; and a
    result that is there on leaving was there before the message. Ranks take turns in being late.

    Collective: every rank of the case must make it.

    Args:
        here: What the rank knows.

    Attributes:
        num_stuck: How often the others did not leave, however long this rank was late.
        num_early: How many results were there before the last rank had sent anything.
    """

    def __init__(self, context):
        self._here = context
        self._folder = context.folder / f"late-{context.case.seed}"
        self._folder.mkdir(exist_ok=True)
        self._pids = [None] * context.world_size
        dist.all_gather_object(self._pids, os.getpid())
        self.num_stuck = self.num_early = 0

    def call(self, hook, state, bucket, step):
        """
        Call a hook, late if it is this rank's turn, and return what it returns.
        """
        context, others = self._here, range(self._here.world_size)
        late = bucket.index() % context.world_size
        if step not in HELD_STEPS or context.device.type != "cpu" or context.world_size == 1:
            return hook(state, bucket)  # a GPU waits in a queue of its own, and holds up nobody
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
        others = [pid for pid in self._pids if pid != os.getpid()]  # this one only looks
        deadline = Deadline(_HELD_S, lambda: others)
        while not all(file.exists() for file in files):
            if stuck.exists() or deadline.is_over:
                return stuck.exists()
            time.sleep(_LOOK_EVERY_S)
        return True
