"""
Task 03.3: ring all-reduce for any length.

On each rank: `_act`; in both: `_numbers`. In the kernel: the rest.
"""

from dataclasses import replace
from functools import lru_cache

import torch

from ddp_lessons.checks.kit import (
    VALUES,
    Case,
    Expected,
    Mistake,
    Task,
    equal,
    normal_numbers,
    sum_error,
)
from ddp_lessons.checks.kit.shared.lost_digits import full_numbers, is_nearly
from ddp_lessons.checks.kit.shared.message_rounds import sending_device
from ddp_lessons.checks.kit.shared.watched_calls import EARLY_USE, call_watched
from ddp_lessons.checks.ring.rings import RING_WORDS, draw_ring, ring_costs


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
    yield replace(case(5, [11], "float64"), seed=0, is_simulated=True)
    # Chunks that are larger than any buffer of the operating system.
    yield case(4, [2**18 + 4 * draw.randint(0, 99) + 1], "float32", "normal")


def _act(context, all_reduce):
    device = sending_device(context)
    return call_watched(context, all_reduce, lambda case: [_numbers(case, context.rank).to(device)])


def _numbers(case, rank):
    draw = full_numbers if case["numbers"] == "whole" else normal_numbers
    numbers = draw(case, rank, case["shape"], getattr(torch, case["dtype"]))
    if case["numbers"] == "transposed":
        return numbers.T
    return numbers[:, :1].expand(case["shape"]) if case["numbers"] == "expanded" else numbers


@lru_cache(maxsize=1)
def _tensors(case):
    return [_numbers(case, rank) for rank in range(case.world_size)]


@lru_cache(maxsize=1)
def _sum(case):
    tensors = _tensors(case)
    exact = torch.float64 if tensors[0].is_floating_point() else torch.int64
    return sum(tensor.to(exact) for tensor in tensors).to(tensors[0].dtype)


@lru_cache(maxsize=1)
def _most_off(case):
    if case["numbers"] == "whole":
        return None
    # The right sum itself is rounded to the dtype of the answer.
    total = _sum(case)
    return sum_error(_tensors(case)) + total.double().abs() * torch.finfo(total.dtype).eps / 2


def _is_far(view):
    """
    Tell whether a sum is off by more than its last digits.
    """
    if not view.is_off or view.got.shape != view.expected.shape:
        return view.is_off
    return not is_nearly(view.got, view.expected, view.case_result.before)


def _is_cut_off(view):
    num_over = view.expected.numel() % view.case.world_size
    if not num_over or not _is_far(view) or view.got.shape != view.expected.shape:
        return False
    got, expected = (tensor.flatten()[:-num_over] for tensor in (view.got, view.expected))
    return torch.equal(got, expected)


def _is_half_done(view):
    tensors = [got for got in view.case_result.results if isinstance(got, torch.Tensor)]
    right = [got == view.expected for got in tensors if got.shape == view.expected.shape]
    return _is_far(view) and bool(right) and bool(torch.stack(right).any(dim=0).all())


def _num_steps(case):
    return 2 * (case.world_size - 1)


def _chunk_bytes(case):
    total = _sum(case)
    return -(-total.numel() // case.world_size) * total.element_size()


_SENT_DTYPE, (_TOO_LONG, *_COSTS) = ring_costs(
    _num_steps,
    lambda case, rank: _num_steps(case) * _chunk_bytes(case),
    _chunk_bytes,
    "A rank takes 2 (w - 1) steps, and sends one message in each: one whole chunk.",
)

all_reduce = Task(
    number="03.3",
    name="all_reduce",
    twice=True,
    cases=_cases,
    act=_act,
    ok="2 (w - 1) messages a rank, and equal bits on all ranks",
    draw=lambda case_result: draw_ring(case_result, ["grow", "copy"]),
    hints=(
        "After a reduce-scatter each rank has the complete sum of one chunk. An all-gather gives "
        "it the other chunks.",
        "Your two functions take flat chunks. So make the tensor flat first, and give the sum its "
        "shape at the end.",
        "tensor_split(w) makes w chunks of any length, some of them empty if need be; chunk(w) may "
        "make fewer. flatten() also takes a tensor that is not contiguous.",
        "chunks = tensor.flatten().tensor_split(dist.get_world_size()); all_gather "
        "takes their lengths; torch.cat and view(tensor.shape) come last.",
    ),
    expected=Expected(lambda case, rank: _sum(case), most_off=lambda case, rank: _most_off(case)),
    mistakes=(
        EARLY_USE,
        Mistake(
            "tail",
            "If w does not divide the length, some chunks are one number longer than others. "
            "Every number belongs to a chunk.",
            "Only the last numbers are wrong, which are left over if the length is divided by w.",
            shows=_is_cut_off,
        ),
        Mistake(
            "half-done",
            "After the reduce-scatter a rank has the complete sum of one chunk only. The other "
            "chunks come by an all-gather.",
            "Each number is right on some rank, but not on all ranks.",
            shows=_is_half_done,
        ),
        Mistake(
            "memory",
            "The tensor is not contiguous. flatten() reads its numbers in the order of its shape, "
            "wherever they are in memory. But flatten, reshape and contiguous then return copies, "
            "and a number that you write into a copy does not reach the tensor. A clone of a "
            "transposed tensor is transposed, too.",
            "The sum is right for contiguous tensors, and wrong for this tensor.",
            shows=lambda view: view.case["numbers"] in ("transposed", "expanded") and _is_far(view),
        ),
        Mistake(
            "bits",
            "Finish each chunk on one rank, and send it to all others as it is.",
            "The sum differs from rank 0's sum in some bits.",
            shows=lambda view: (
                not _is_far(view) and not equal(view.got, view.case_result.results[0])
            ),
        ),
        replace(
            _SENT_DTYPE,
            symptom="The sum is nearly right. Digits are lost.",
            shows=lambda view: _SENT_DTYPE.shows(view) or (view.is_off and not _is_far(view)),
        ),
        replace(
            _TOO_LONG,
            hint="Send one of w chunks in a step: none is longer than n / w, rounded up. The whole "
            "tensor costs w / 2 times as much, and each rank then adds in another order.",
            shows=lambda view: not _is_far(view) and _TOO_LONG.shows(view),
        ),
        VALUES,
        *_COSTS,
        Mistake(
            "few-chunks",
            "There are fewer than w chunks here: torch.chunk(w) may make fewer, for example 3 "
            "chunks of 6 numbers for w = 4. tensor_split(w) always makes w, some of them empty if "
            "need be.",
            raises=("index out of range",),
        ),
        Mistake(
            "not-contiguous",
            "The tensor is not contiguous, so view cannot make it flat. flatten() and reshape can.",
            raises=("view size is not compatible",),
        ),
        *RING_WORDS,
        Mistake(
            "died",
            "A message that is longer than the tensor it arrives in ends the process. Sums keep "
            "the dtype of the tensor: torch.sum makes int64 of int32.",
        ),
        Mistake("shape", "Give the sum the shape of the argument."),
        Mistake(
            "input-changed",
            "flatten and tensor_split return views: add into new tensors.",
        ),
    ),
    allowed=("send", "recv"),
)
