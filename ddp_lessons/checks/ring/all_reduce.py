"""
Task 03.3: ring all-reduce for any length.
"""

from dataclasses import replace

import torch

from ddp_lessons.checks.kit import Case, Task, equal, normal_numbers, sum_error
from ddp_lessons.checks.kit.material.digits import full_numbers, is_nearly, refuse_lost_digits
from ddp_lessons.checks.kit.material.early_use import call_watched, refuse_early
from ddp_lessons.checks.kit.material.rounds import sending_device
from ddp_lessons.checks.ring.rings import (
    RING_MISTAKES,
    draw_ring,
    judge_ring,
    refuse_long_messages,
)


def _cases(draw):
    def case(world_size, shape, dtype, numbers="whole", **more):
        return Case(world_size, {"shape": shape, "dtype": dtype, "numbers": numbers} | more)

    yield replace(case(4, [8], "float32"), seed=0)
    yield case(4, [4 * draw.randint(2, 5) + 3], "int64")
    yield case(3, [2], "float32")
    yield case(3, [3 * draw.randint(2, 5) + 2], "int64")
    yield case(4, [0, 3], "int64")
    yield case(3, [3 * draw.randint(2, 5) + 1], "bfloat16", calls=2)
    yield case(2, [2 * draw.randint(2, 5) + 1], "int32")
    yield case(3, [draw.randint(3, 5), 7], "float32", "transposed")
    yield case(2, [draw.randint(3, 5), 5], "float32", "expanded")
    yield case(1, [draw.randint(1, 9)], "float64", "normal")
    yield case(2, [], "float64", "normal")
    yield replace(case(5, [11], "float64"), seed=0, on_paper=True)
    # Chunks that no system buffer holds.
    yield case(4, [2**18 + 4 * draw.randint(0, 99) + 1], "float32", "normal")


def _act(here, all_reduce):
    device = sending_device(here)
    return call_watched(here, all_reduce, lambda case: [_numbers(case, here.rank).to(device)])


def _numbers(case, rank):
    draw = full_numbers if case["numbers"] == "whole" else normal_numbers
    numbers = draw(case, rank, case["shape"], getattr(torch, case["dtype"]))
    if case["numbers"] == "transposed":
        return numbers.T
    return numbers[:, :1].expand(case["shape"]) if case["numbers"] == "expanded" else numbers


def _judge(played):
    refuse_early(played)
    tensors, results, w = played.before, played.results, played.case.world_size
    kind = played.case["numbers"]
    exact = sum(tensors)
    if exact.is_floating_point():
        exact = sum(tensor.double() for tensor in tensors).to(exact.dtype)
    longest = -(-exact.numel() // w)
    # First what is wrong altogether, then what it costs, and its last digits at the end.
    far = sum(tensor.double().abs() for tensor in tensors) / 100
    for rank, got in enumerate(results):
        if kind == "whole" and isinstance(got, torch.Tensor):
            _name_the_part(played, rank, got, exact)
        mistake = "values"
        if kind in ("transposed", "expanded"):
            mistake = "memory" if _is_in_other_order(got, exact, far) else "copied"
        played.expect(rank, got, exact, far, mistake=mistake)
    refuse_long_messages(played, longest * exact.element_size(), exact.nbytes)
    for rank, got in enumerate(results):
        if not equal(got, results[0]):
            both = {"got": got, "expected": results[0]}
            fact = "Its bits are not those of rank 0's sum."
            raise played.wrong("bits", rank, **both, fact=fact)
    for rank, got in enumerate(results):
        if kind == "whole":
            refuse_lost_digits(played, rank, got, exact, tensors)
        else:
            most_off = sum_error(tensors) + _rounding(exact)
            played.expect(rank, got, exact, most_off, mistake="digits")
    num_steps = 2 * (w - 1)
    judge_ring(played, num_steps, [num_steps * longest * exact.element_size()] * w)


def _is_in_other_order(got, exact, far):
    if not isinstance(got, torch.Tensor) or got.shape != exact.shape:
        return False
    both = (tensor.flatten().double().sort().values for tensor in (got, exact))
    return bool((next(both) - next(both)).abs().max() <= far.max())


def _rounding(exact):
    # `exact` was rounded to the dtype of the answer.
    return exact.double().abs() * torch.finfo(exact.dtype).eps / 2


def _name_the_part(played, rank, got, exact):
    w, both = played.case.world_size, {"got": got, "expected": exact}
    if got.shape != exact.shape or got.dtype != exact.dtype:
        return
    if is_nearly(got, exact, played.before):
        return
    if w > 1 and got.is_floating_point() and equal(got, exact / w):
        raise played.wrong("average", rank, **both, fact="This is the mean, not the sum.")
    num_over = exact.numel() % w
    if num_over and torch.equal(got.flatten()[:-num_over], exact.flatten()[:-num_over]):
        fact = f"Only the last {num_over} of the numbers are not right."
        raise played.wrong("tail", rank, **both, fact=fact)
    tensors = [other for other in played.results if isinstance(other, torch.Tensor)]
    right = [other == exact for other in tensors if other.shape == exact.shape]
    if torch.stack(right).any(dim=0).all():
        fact = "Each number is right on some rank, and not on all of them."
        raise played.wrong("half-done", rank, **both, fact=fact)


all_reduce = Task(
    number="03.3",
    name="all_reduce",
    twice=True,
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="2 (w - 1) messages a rank, and equal bits on all ranks",
    draw=lambda played: draw_ring(played, ["grow", "copy"]),
    hints=(
        "A reduce-scatter leaves each rank with one finished chunk. What is missing then is an "
        "all-gather.",
        "Your two functions want chunks, which are flat. So make the tensor flat first, and give "
        "it its shape back at the end.",
        "tensor_split(w) makes w chunks of any length, some of them empty if need be; chunk(w) may "
        "make fewer. flatten() also takes a tensor that does not lie in one piece.",
        "chunks = tensor.flatten().tensor_split(dist.get_world_size()); their lengths are what "
        "all_gather wants; torch.cat and view(tensor.shape) come last.",
    ),
    mistakes=RING_MISTAKES
    | {
        "whole-tensor": "Cut the tensor into w chunks, and send one in a step. The whole tensor "
        "costs w / 2 times as much, and each rank adds in an order of its own.",
        "too-long": "Cut so that no chunk is longer than n / w, rounded up: the chunks of "
        "tensor_split differ by one number at most.",
        "cost": "2 (w - 1) steps, and one message a step: send a chunk whole.",
        "digits": "Add in the dtype of the tensor: another one may not hold these sums.",
        "memory": "The tensor does not lie in one piece. flatten() takes its numbers in the order "
        "of its shape, wherever they lie.",
        "copied": "If a tensor does not lie in one piece, its flatten, reshape and contiguous are "
        "copies, and what you write into a copy is nowhere else. A clone of a transposed tensor "
        "is transposed, too.",
        "dtype": "The sum has the dtype of the tensor. torch.sum makes int64 of int32: use +.",
        "died": "A message that is longer than the tensor it arrives in ends the process. Sums "
        "keep the dtype of the tensor: torch.sum makes int64 of int32.",
        "average": "The sum is asked for. Leave it to the caller to divide.",
        "tail": "The length need not divide by w. Some chunks are then one number longer.",
        "half-done": "After the reduce-scatter a rank has its own chunk only. Gather the others.",
        "bits": "Finish each chunk on one rank, and send it to all others as it is.",
        "raised": "Think of lengths that w does not divide, of fewer numbers than ranks, or none; "
        "of tensors that do not lie in one piece; of dtypes that numpy lacks; of one rank alone.",
        "shape": "Give the sum the shape of the tensor that you were given.",
        "input-changed": "flatten and tensor_split return views: add into tensors of your own.",
    },
    allowed=("send", "recv"),
)
