"""
Task 02.3: an exchange at any distance that cannot deadlock.

On each rank: `_act`. In the kernel: the rest.
"""

import math

from ddp_lessons.checks.collectives.tensors import IN_ITS_DTYPE, MUST_FIT, tensor_of
from ddp_lessons.checks.kit import Case, Task, equal
from ddp_lessons.checks.kit.shared.lost_digits import refuse_lost_digits
from ddp_lessons.checks.kit.shared.message_rounds import (
    rounds_in_turns,
    rounds_of_sends,
    sending_device,
)
from ddp_lessons.checks.kit.shared.repeated_calls import KEPT_HINT
from ddp_lessons.checks.kit.shared.watched_calls import EARLY_USES, call_watched, refuse_early
from ddp_lessons.pictures import timeline_picture, timeline_tracks
from ddp_lessons.trace import merge


def _cases(draw):
    yield Case(4, {"shape": [3], "dtype": "float32", "distance": 1}, seed=0)
    for world_size in (1, 2, 3):
        data = {"shape": [draw.randint(8, 40)], "dtype": "float64", "distance": 1}
        yield Case(world_size, data)
    # At distance 2 of 4 ranks, even ranks send to even ones, and sender and receiver swap.
    yield Case(4, {"shape": [draw.randint(2, 5), 3], "dtype": "int64", "distance": 2})
    yield Case(4, {"shape": [2**17 + draw.randint(0, 99)], "dtype": "float32", "distance": 3})
    yield Case(3, {"shape": [0], "dtype": "float32", "distance": 2})
    yield Case(3, {"shape": [5], "dtype": "float64", "distance": draw.choice([0, 3])})
    data = {"shape": [draw.randint(5, 9)], "dtype": "float64", "distance": draw.choice([4, 5])}
    yield Case(3, {**data, "calls": 2})
    # An answer made for 4 ranks leaves some of these waiting; distances 2 and 3 make smaller
    # circles.
    for world_size, distance in ((6, 1), (6, 2), (9, 3), (9, 1)):
        data = {"shape": [2], "dtype": "float64", "distance": distance}
        yield Case(world_size, data, is_simulated=True)


def _act(context, exchange):
    device = sending_device(context)
    return call_watched(
        context,
        exchange,
        lambda case: [tensor_of(case, context.rank).to(device), context["distance"]],
    )


def _judge(case_result):
    refuse_early(case_result)
    tensors, w = case_result.before, case_result.case.world_size
    distance = case_result.case["distance"]
    for rank, got in enumerate(case_result.results):
        expected = tensors[(rank - distance) % w]
        both = {"got": got, "expected": expected}
        if got is not None and not equal(got, expected):
            if equal(got, tensors[rank]):
                raise case_result.wrong("own", rank, **both, fact="This rank has its own tensor.")
            if equal(got, tensors[(rank + distance) % w]):
                fact = "This rank has the tensor of the rank that it should send to."
                raise case_result.wrong("direction", rank, **both, fact=fact)
            if equal(got, tensors[rank - 1]):
                fact = f"The distance is {distance}, and this rank has its neighbour's tensor."
                raise case_result.wrong("neighbour", rank, **both, fact=fact)
        refuse_lost_digits(case_result, rank, got, expected, [expected])
        case_result.expect(rank, got, expected)
    most = 1 if distance % w else 0
    for rank, names in enumerate(case_result.call_names):
        num_sent = names.count("send")
        if num_sent > most:
            fact = f"What it returns is right, but it sends {num_sent} messages; {most} is enough."
            raise case_result.wrong("cost", rank, fact=fact)
    most = rounds_in_turns(w // math.gcd(w, distance))
    for rank, rounds in enumerate(rounds_of_sends(case_result.traces)):
        if max(rounds, default=0) > most:
            fact = (
                f"Its message can only move in round {max(rounds)}, because it waits for a chain "
                f"of other messages; {most} rounds are enough."
            )
            raise case_result.wrong("turns", rank, fact=fact)


def _draw(case_result):
    return timeline_picture(timeline_tracks(merge(case_result.traces)), "events, in order")


_IN_A_CIRCLE = (
    "Ranks are counted in a circle: after the last one comes rank 0, so compute modulo the number "
    "of ranks. A rank cannot send to itself: if the distance is 0 or a multiple of the number of "
    "ranks, return a copy."
)


exchange = Task(
    number="02.3",
    name="exchange",
    twice=True,
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="1 message a rank, and no long chain of waiting ranks",
    draw=_draw,
    hints=(
        "A send blocks until its receiver calls recv. If all ranks of a circle block in a send, no "
        "rank comes to its recv.",
        "Start one of the two calls without waiting for it, make the other, and then wait.",
        "dist.isend and dist.irecv return a handle at once. Until handle.wait() has returned, the "
        "tensor belongs to the call.",
        "handle = dist.irecv(arrived, src=...) comes first, with rank (rank - distance) % "
        "world_size. Then send, wait and return.",
    ),
    mistakes=EARLY_USES
    | {
        "deadlock": "If all ranks of a circle block in the same call, none makes the other call. "
        "To take turns by even and odd ranks is not enough: at an even distance, even ranks send "
        "to even ranks. Start one of the calls without waiting for it.",
        "unwaited": "isend and irecv return at once. Keep the handle, and wait for it before you "
        "return.",
        "direction": "Send to rank r + distance, and receive from rank r - distance.",
        "neighbour": "Use the argument distance: the source of rank r is rank r - distance.",
        "own": "A rank keeps its own tensor only if it would send to itself. Else receive into a "
        "new tensor, wait until the message is there, and return that tensor.",
        "died": MUST_FIT,
        "input-changed": "Receive into another tensor: torch.empty_like(tensor).",
        "digits": IN_ITS_DTYPE,
        "turns": "All ranks can send at the same time: isend and irecv start without waiting.",
        "kept": KEPT_HINT,
        "cost": "Send the whole tensor in one message, whatever its size. A rank that would send "
        "to itself sends nothing.",
        "forbidden": "Use send, recv, isend and irecv: each tensor goes to one rank only.",
        "raised": _IN_A_CIRCLE + " A tensor may have 0 numbers: then recv needs its argument src.",
    },
    allowed=("send", "recv"),
)
