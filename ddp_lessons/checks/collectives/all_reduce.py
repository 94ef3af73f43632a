"""
Task 02.1: all-reduce from reduce and broadcast.

On each rank: `_act`. In the kernel: the rest.
"""

import torch

from ddp_lessons.checks.collectives.tensors import tensor_of
from ddp_lessons.checks.kit import Case, Task, equal
from ddp_lessons.checks.kit.shared.lost_digits import refuse_lost_digits
from ddp_lessons.checks.kit.shared.repeated_calls import KEPT_HINT, call_once_or_twice
from ddp_lessons.pictures import collective_picture
from ddp_lessons.ranks.diagnosis.wording import rank_names


def _cases(draw):
    yield Case(4, {"shape": [3], "dtype": "float32"}, seed=0)
    for world_size in (1, 2, 3, 4):
        yield Case(world_size, {"shape": [draw.randint(5, 40)], "dtype": "float64"})
    yield Case(3, {"shape": [draw.randint(2, 5), 3], "dtype": "int64"})
    yield Case(2, {"shape": [], "dtype": "float32"})
    yield Case(3, {"shape": [0, 2], "dtype": "float64"})
    yield Case(2, {"shape": [draw.randint(5, 9)], "dtype": "float32", "calls": 2})


def _act(context, all_reduce):
    call_once_or_twice(
        context, all_reduce, lambda case: [tensor_of(case, context.rank).to(context.device)]
    )


def _judge(case_result):
    tensors, num_ranks = case_result.before, case_result.case.world_size
    total = sum(tensors)
    for rank, got in enumerate(case_result.results):
        is_like = isinstance(got, torch.Tensor) and got.dtype == total.dtype
        if is_like and got.shape == total.shape and num_ranks > 1:
            _name_the_mistake(case_result, rank, got, tensors, total)
        refuse_lost_digits(case_result, rank, got, total, tensors)
        case_result.expect(rank, got, total)
    for rank, names in enumerate(case_result.call_names):
        if len(names) > 2:
            fact = f"The sum is right, but the call made {len(names)} collectives; 2 are enough."
            raise case_result.wrong("cost", rank, fact=fact)


def _name_the_mistake(case_result, rank, got, tensors, total):
    if torch.equal(got, total):
        return
    both = {"got": got, "expected": total}
    lucky = [r for r, other in enumerate(case_result.results) if equal(other, total)]
    if lucky or torch.equal(got, tensors[rank]):
        which = f"only on {rank_names(lucky)}" if lucky else "nowhere"
        raise case_result.wrong("not-everywhere", rank, **both, fact=f"The sum is {which}.")
    if any(torch.equal(got, tensor) for tensor in tensors):
        fact = "This rank has the tensor of one rank, not the sum."
        raise case_result.wrong("no-sum", rank, **both, fact=fact)
    if any(torch.equal(got, len(tensors) * tensor) for tensor in tensors):
        fact = "This rank has one rank's tensor, w times."
        raise case_result.wrong("wrong-order", rank, **both, fact=fact)
    if got.is_floating_point() and torch.equal(got, total / len(tensors)):
        raise case_result.wrong("average", rank, **both, fact="This is the mean, not the sum.")
    doubled = [r for r, tensor in enumerate(tensors) if torch.equal(got, total + tensor)]
    if doubled:
        fact = f"The numbers of rank {doubled[0]} are in the sum twice."
        raise case_result.wrong("twice", rank, **both, fact=fact)


def _draw(case_result):
    rows = (
        [tensor.tolist() for tensor in each] for each in (case_result.before, case_result.results)
    )
    before, after = ([[int(number) for number in row] for row in each] for each in rows)
    return collective_picture("all_reduce", before, after)


all_reduce = Task(
    number="02.1",
    name="all_reduce",
    twice=True,
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="2 collectives a rank",
    draw=_draw,
    hints=(
        "One call adds the tensors of all ranks on one rank. Another call brings one tensor to "
        "all ranks.",
        "reduce leaves the sum on rank dst only. Which call brings it from there to all ranks?",
        "Both calls work in place: they overwrite the tensor that you give. So give them a clone.",
        "total = tensor.clone(); then dist.reduce(total, dst=0); one more call is missing.",
    ),
    mistakes={
        "forbidden": "Use reduce and broadcast, and no other call of torch.distributed that sends.",
        "not-everywhere": "After reduce, only rank dst has the sum. The other ranks must get it, "
        "too.",
        "no-sum": "Send the sum from the rank that has it: reduce's dst is broadcast's src.",
        "wrong-order": "First reduce, then broadcast: in the other order, w copies of one tensor "
        "are added.",
        "average": "Return the sum. The caller divides if a mean is needed.",
        "twice": "reduce adds the numbers of rank dst, too: the result there is the whole sum.",
        "digits": "Add and send in the dtype of the tensor: another dtype may not hold its "
        "numbers.",
        "kept": KEPT_HINT,
        "raised": "If the message names a line, it is a line of your function. Think of a group of "
        "one rank, and of tensors with one number, or with none.",
        "cost": "One reduce, to any rank, and one broadcast from there.",
        "deadlock": "Every rank makes both calls, also the rank that has the sum already.",
    },
    allowed=("reduce", "broadcast"),
)
