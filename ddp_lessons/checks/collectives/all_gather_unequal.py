"""
Task 02.2: all-gather of unequal lengths.

On each rank: `_act`, `_numbers_of_length`. In the kernel: the rest.
"""

import torch

from ddp_lessons.checks.collectives.tensors import IN_ITS_DTYPE
from ddp_lessons.checks.kit import Case, Task, equal
from ddp_lessons.checks.kit.shared.lost_digits import full_numbers, refuse_lost_digits
from ddp_lessons.checks.kit.shared.message_rounds import sending_device
from ddp_lessons.checks.kit.shared.repeated_calls import KEPT_HINT, call_once_or_twice
from ddp_lessons.pictures import collective_picture

_NUMBER_BYTES = 8


def _cases(draw):
    yield Case(4, {"lengths": [2, 3, 1, 2], "dtype": "float32"}, seed=0)
    yield Case(1, {"lengths": [draw.randint(1, 9)], "dtype": "float64"})
    # The 8 bits of bfloat16's mantissa do not hold this length: it is rounded up by 1.
    lengths = [draw.randint(1, 9), 4 * draw.randint(65, 90) + 3]
    yield Case(2, {"lengths": lengths, "dtype": "bfloat16"})
    lengths = [0, draw.randint(1, 20), draw.randint(21, 40)]
    yield Case(3, {"lengths": draw.sample(lengths, 3), "dtype": "float64"})
    lengths = [*(draw.randint(5, 9) for _ in range(3)), draw.randint(10, 50)]
    yield Case(4, {"lengths": lengths, "dtype": "int64", "calls": 2})
    # The 11 bits of float16's mantissa do not hold this length.
    lengths = [draw.randint(1, 9), 2048 + 4 * draw.randint(1, 99) + 3]
    yield Case(2, {"lengths": lengths, "dtype": "float64"})
    yield Case(2, {"lengths": [0, 0], "dtype": "float32"})


def _act(context, all_gather_unequal):
    if context.case.seed == 0:  # equal lengths first: Gloo may abort the process if lengths differ
        context.call(all_gather_unequal, _numbers_of_length(context, context.case, 2))
        if context.world_size > 1 and len(context.calls[0].events) < 2:
            return  # a rank cannot know the other lengths
        context.calls.clear()
    length = context["lengths"][context.rank]
    call_once_or_twice(
        context, all_gather_unequal, lambda case: [_numbers_of_length(context, case, length)]
    )


def _numbers_of_length(context, case, length):
    numbers = full_numbers(case, context.rank, [length], getattr(torch, case["dtype"]))
    numbers[-1:] = 0  # a last number that looks like padding must stay
    return numbers.to(sending_device(context))


def _judge(case_result):
    tensors = case_result.before
    for rank, got in enumerate(case_result.results):
        if not isinstance(got, list | tuple) or len(got) != len(tensors):
            fact = f"It must return a list of {len(tensors)} tensors."
            raise case_result.wrong("no-list", rank, got=got, fact=fact)
    _name_the_length(case_result, tensors)
    for rank, got in enumerate(case_result.results):
        _name_the_order(case_result, rank, got, tensors)
        for part, expected in zip(got, tensors, strict=True):
            refuse_lost_digits(case_result, rank, part, expected, [expected])
            case_result.expect(rank, part, expected)
    longest = max(tensor.nbytes for tensor in tensors)
    if len(tensors) > 1 and longest and len(case_result.call_names[0]) < 2:
        fact = "It makes only one collective. It needs two: for the lengths, and for the tensors."
        raise case_result.wrong("no-lengths", 0, fact=fact)
    most_bytes, dtype = _NUMBER_BYTES + longest, case_result.case["dtype"]
    for rank, events in enumerate(case_result.traces):
        moved = [event for event in events if event.is_communication]
        if len(moved) > 2:
            fact = (
                f"The tensors are right, but the call made {len(moved)} collectives; 2 are enough."
            )
            raise case_result.wrong("cost", rank, fact=fact)
        num_bytes = sum(event.input_bytes for event in moved)
        if num_bytes > most_bytes and moved[-1].input_bytes <= longest:
            fact = f"{num_bytes - moved[-1].input_bytes} bytes went into the call for the lengths; "
            fact += f"{_NUMBER_BYTES} are enough."
            raise case_result.wrong("wide-length", rank, fact=fact)
        if num_bytes > most_bytes:
            sent = moved[-1].dtype
            fact = f"{num_bytes} bytes went into its calls, the last {moved[-1].input_bytes} as "
            fact += f"{sent}; {most_bytes} are enough."
            other = "objects" if sent == "uint8" else "wide-dtype"
            raise case_result.wrong("too-wide" if sent == dtype else other, rank, fact=fact)


def _name_the_length(case_result, tensors):
    expected = [len(tensor) for tensor in tensors]
    shapes = [[list(getattr(part, "shape", ())) for part in got] for got in case_result.results]
    for mistake, fact, lengths_on in (
        ("padding", "All parts are equally long.", lambda rank: [max(expected)] * len(expected)),
        ("own-length", "Each rank cut all parts to its own length.",
         lambda rank: [len(tensors[rank])] * len(expected)),
        *(("length-dtype", "A length was rounded on its way.",
           lambda rank, dtype=dtype: [int(torch.tensor(n, dtype=dtype)) for n in expected])
          for dtype in (tensors[0].dtype, torch.float16, torch.bfloat16)),
        ("length-dtype", "A length lost its digits beyond 8 bits.",
         lambda rank: [n % 256 for n in expected]),
        ("zeros", "Zeros of the tensors are missing.",
         lambda rank: [int(tensor.count_nonzero()) for tensor in tensors]),
    ):  # fmt: skip
        cut = [[[n] for n in lengths_on(rank)] for rank in range(len(expected))]
        if shapes == cut != [[[n] for n in expected]] * len(expected):
            rank = next(r for r, row in enumerate(cut) if row != [[n] for n in expected])
            lengths = {"got": [n for (n,) in cut[rank]], "expected": expected}
            raise case_result.wrong(mistake, rank, **lengths, fact=f"{fact} These are the lengths.")


def _name_the_order(case_result, rank, got, tensors):
    ranks = list(range(len(tensors)))
    places = [next((r for r in ranks if equal(part, tensors[r])), None) for part in got]
    if places != ranks == sorted(places, key=lambda place: -1 if place is None else place):
        fact = "All tensors are there, in another order. These are the ranks that they come from."
        raise case_result.wrong("order", rank, got=places, expected=ranks, fact=fact)


def _draw(case_result):
    before = [[int(number) for number in tensor] for tensor in case_result.before]
    after = [[int(number) for part in got for number in part] for got in case_result.results]
    return collective_picture("all_gather_unequal", before, after)


_ONE_LENGTH = (
    "In one all_gather, the tensors of all ranks have the same length. First gather the lengths, "
    "then pad the tensors to one length."
)


_ALIKE = (
    "In one all_gather, the tensors of all ranks have the same length and the same dtype, also the "
    "tensors that hold lengths"
)


all_gather_unequal = Task(
    number="02.2",
    name="all_gather_unequal",
    twice=True,
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="2 collectives a rank, at most 8 bytes more than the longest tensor",
    draw=_draw,
    hints=(
        "all_gather takes tensors of equal length. So make them equally long, and cut them again.",
        "To cut them, every rank needs the lengths of all ranks. A length is a number, and numbers "
        "can be gathered.",
        "Gather the lengths as int64. Pad each tensor to the greatest length, and gather the "
        "padded tensors.",
        "padded = tensor.new_zeros(longest); padded[: len(tensor)] = tensor; then all_gather "
        "padded, and cut part r to lengths[r].",
    ),
    mistakes={
        "no-lengths": _ONE_LENGTH,
        "no-list": "Return a list with one tensor for each rank, in rank order.",
        "padding": "Cut off the padding: part r is as long as rank r's tensor was.",
        "own-length": "Each rank has its own length: cut part r to the length of rank r.",
        "length-dtype": "Send lengths as int64. The tensor's own dtype, or a narrow one, may not "
        "hold them exactly.",
        "zeros": "A zero may be one of the numbers. Send lengths, and cut by them.",
        "digits": IN_ITS_DTYPE,
        "order": "Part r is rank r's tensor: all_gather keeps the order of the ranks.",
        "objects": "Gather tensors. An object travels as a pickle, which is longer than its "
        "numbers.",
        "kept": KEPT_HINT,
        "cost": "Gather the lengths once, and the tensors once.",
        "wide-length": "A length is one number for each rank, and int64 is wide enough for it.",
        "too-wide": "Pad to the length of the longest tensor, and not further.",
        "wide-dtype": "Pad with zeros of the tensor's dtype: tensor.new_zeros makes them.",
        "forbidden": "Use all_gather or all_gather_into_tensor, and no other call that sends.",
        "died": f"{_ALIKE}: pad the shorter ones. A rank without numbers makes both calls, too. "
        "If more bytes arrive than a tensor has room for, torch ends the process.",
        "raised": f"Think of other dtypes and of an empty tensor. {_ALIKE}. The tensors in the "
        "list that it writes into have that length and dtype, too.",
    },
    allowed=("all_gather", "all_gather_into_tensor"),
)
