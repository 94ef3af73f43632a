"""
Task 02.3: an exchange at any distance that cannot deadlock.

On each rank: `_act`. In the kernel: the rest.
"""

import math

from ddp_lessons.checks.collectives.tensors import LOST_DIGITS, MUST_FIT, tensor_of
from ddp_lessons.checks.kit import VALUES, Case, Expected, Mistake, Task
from ddp_lessons.checks.kit.shared.message_rounds import (
    rounds_in_turns,
    rounds_of_sends,
    sending_device,
)
from ddp_lessons.checks.kit.shared.repeated_calls import KEPT_HINT
from ddp_lessons.checks.kit.shared.watched_calls import EARLY_USES, call_watched
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


def _tensor_at(case, rank):
    """
    Return the tensor with which a rank starts, counted in a circle: rank w is rank 0.
    """
    return tensor_of(case, rank % case.world_size)


def _sends_too_often(view):
    num_sent = view.case_result.call_names[view.rank].count("send")
    most = 1 if view.case["distance"] % view.case.world_size else 0
    if num_sent <= most:
        return ""
    return f"The value is right, but the rank sends {num_sent} messages; {most} is enough."


def _waits_for_a_chain(view):
    w = view.case.world_size
    most = rounds_in_turns(w // math.gcd(w, view.case["distance"]))
    last = max(rounds_of_sends(view.case_result.traces)[view.rank], default=0)
    if last <= most:
        return ""
    return (
        f"Its message can only move in round {last}, because it waits for a chain of other "
        f"messages; {most} rounds are enough."
    )


def _draw(case_result):
    return timeline_picture(timeline_tracks(merge(case_result.traces)), "events, in order")


_IN_A_CIRCLE = (
    "Ranks are counted in a circle: rank 0 follows the last rank, so compute modulo the number of "
    "ranks. A rank cannot send to itself: if the distance is 0 or a multiple of the number of "
    "ranks, return a copy."
)


exchange = Task(
    number="02.3",
    changed_in="0.2.0",
    name="exchange",
    twice=True,
    cases=_cases,
    act=_act,
    ok="1 message a rank, and no long chain of waiting ranks",
    draw=_draw,
    hints=(
        "A send blocks until its receiver calls recv. If all ranks of a circle block in a send, no "
        "rank reaches its recv.",
        "Start one of the two calls without waiting for it, make the other call, and then wait.",
        "dist.isend and dist.irecv return a handle at once. Until handle.wait() has returned, the "
        "tensor belongs to the call.",
        "handle = dist.irecv(arrived, src=...) comes first, with rank (rank - distance) % "
        "world_size. Then send, wait and return.",
    ),
    expected=Expected(lambda case, rank: _tensor_at(case, rank - case["distance"])),
    mistakes=(
        *EARLY_USES,
        Mistake(
            "own",
            "A rank keeps its own tensor only if it would send to itself. Else receive into a new "
            "tensor, wait until the message is there, and return that tensor.",
            "This rank has its own tensor.",
            gives=lambda case, rank: [_tensor_at(case, rank)],
        ),
        Mistake(
            "direction",
            "Send to rank r + distance, and receive from rank r - distance.",
            "This rank has the tensor of the rank that it should send to.",
            gives=lambda case, rank: [_tensor_at(case, rank + case["distance"])],
        ),
        Mistake(
            "neighbour",
            "Use the argument distance: the source of rank r is rank r - distance.",
            "This rank has its left neighbour's tensor, although the distance is not 1.",
            gives=lambda case, rank: [_tensor_at(case, rank - 1)],
        ),
        LOST_DIGITS,
        VALUES,
        Mistake(
            "cost",
            "Send the whole tensor in one message, whatever its size. A rank that would send to "
            "itself sends nothing.",
            shows=_sends_too_often,
        ),
        Mistake(
            "turns",
            "All ranks can send at the same time: isend and irecv start without waiting.",
            shows=_waits_for_a_chain,
        ),
        Mistake(
            "signature",
            "The function takes a distance since version 0.2.0: write exchange(tensor, distance). "
            "Rank r sends to rank r + distance, as the text of the task says. Version 0.1.0 asked "
            "for the exchange with the neighbours alone, whose distance is 1.",
        ),
        Mistake(
            "deadlock",
            "If all ranks of a circle block in the same call, none makes the other call. To take "
            "turns by even and odd ranks is not enough: at an even distance, even ranks send to "
            "even ranks. Start one of the calls without waiting for it.",
        ),
        Mistake(
            "unwaited",
            "isend and irecv return at once. Keep the handle, and wait for it before you return.",
        ),
        Mistake("died", MUST_FIT),
        Mistake("input-changed", "Receive into another tensor: torch.empty_like(tensor)."),
        Mistake("kept", KEPT_HINT),
        Mistake(
            "forbidden",
            "Use send, recv, isend and irecv: each tensor goes to one rank only.",
        ),
        Mistake(
            "raised",
            f"{_IN_A_CIRCLE} A tensor may have 0 numbers: then recv needs its argument src.",
        ),
    ),
    allowed=("send", "recv"),
)
