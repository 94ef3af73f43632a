"""
Task 02.3: a neighbour exchange that cannot deadlock.

On each rank: `_act`. In the kernel: the rest.
"""

from ddp_lessons.checks.collectives.tensors import IN_ITS_DTYPE, MUST_FIT, tensor_of
from ddp_lessons.checks.kit import Case, Task, equal
from ddp_lessons.checks.kit.fixtures.lost_digits import KEPT_HINT, refuse_lost_digits
from ddp_lessons.checks.kit.fixtures.message_rounds import (
    rounds_in_turns,
    rounds_of_sends,
    sending_device,
)
from ddp_lessons.checks.kit.fixtures.watched_calls import EARLY, call_watched, refuse_early
from ddp_lessons.pictures import timeline_picture, timeline_tracks
from ddp_lessons.trace import merge


def _cases(draw):
    yield Case(4, {"shape": [3], "dtype": "float32"}, seed=0)
    for world_size in (1, 2, 3):
        yield Case(world_size, {"shape": [draw.randint(8, 40)], "dtype": "float64"})
    yield Case(4, {"shape": [draw.randint(2, 5), 3], "dtype": "int64"})
    yield Case(4, {"shape": [2**17 + draw.randint(0, 99)], "dtype": "float32"})
    yield Case(3, {"shape": [0], "dtype": "float32"})
    yield Case(3, {"shape": [draw.randint(5, 9)], "dtype": "float64", "calls": 2})
    for world_size in (6, 9):  # an answer made for 4 ranks leaves some of these waiting
        yield Case(world_size, {"shape": [2], "dtype": "float64"}, is_simulated=True)


def _act(context, exchange):
    device = sending_device(context)
    return call_watched(context, exchange, lambda case: [tensor_of(case, context.rank).to(device)])


def _judge(case_result):
    refuse_early(case_result)
    tensors, w = case_result.before, case_result.case.world_size
    for rank, got in enumerate(case_result.results):
        both = {"got": got, "expected": tensors[rank - 1]}
        if got is not None and not equal(got, tensors[rank - 1]):
            if equal(got, tensors[rank]):
                raise case_result.wrong("own", rank, **both, fact="This rank has its own tensor.")
            if equal(got, tensors[(rank + 1) % w]):
                fact = "This rank has the tensor of its right neighbour."
                raise case_result.wrong("direction", rank, **both, fact=fact)
        refuse_lost_digits(case_result, rank, got, tensors[rank - 1], [tensors[rank - 1]])
        case_result.expect(rank, got, tensors[rank - 1])
    most = 1 if w > 1 else 0
    for rank, names in enumerate(case_result.call_names):
        num_sent = names.count("send")
        if num_sent > most:
            fact = f"What came is right, but it sends {num_sent} messages; {most} is enough."
            raise case_result.wrong("cost", rank, fact=fact)
    most = rounds_in_turns(w)
    for rank, rounds in enumerate(rounds_of_sends(case_result.traces)):
        if max(rounds, default=0) > most:
            fact = (
                f"Its message can only move in round {max(rounds)}, as it waits for others before "
                f"it; {most} rounds are enough."
            )
            raise case_result.wrong("turns", rank, fact=fact)


def _draw(case_result):
    return timeline_picture(timeline_tracks(merge(case_result.traces)), "events, in order")


_IN_A_CIRCLE = (
    "Ranks stand in a circle: to the right of the last one is rank 0. One rank alone is its own "
    "neighbour, and a message cannot go to oneself."
)


exchange = Task(
    number="02.3",
    name="exchange",
    twice=True,
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="1 message a rank, and no long wait for a turn",
    draw=_draw,
    hints=(
        "A send waits until the other side receives. If all wait in a send, nobody receives.",
        "Start one of the two calls without waiting for it, make the other, and wait then.",
        "dist.isend and dist.irecv return a handle at once. The tensor is the call's until "
        "handle.wait() has returned.",
        "handle = dist.irecv(arrived, src=left) comes first; send, wait and return are left.",
    ),
    mistakes=EARLY
    | {
        "deadlock": "If every rank first waits in the same call, no rank makes the other call. "
        "Start one of them without waiting for it.",
        "unwaited": "isend and irecv return at once. Keep the handle, and wait for it before you "
        "return.",
        "direction": "Send to the right, and receive from the left: rank r takes rank r - 1's.",
        "own": "Only a rank that is alone keeps its own. Receive into a new tensor, wait until it "
        "is there, and return that one.",
        "died": MUST_FIT,
        "input-changed": "Receive into a tensor of its own: torch.empty_like(tensor).",
        "digits": IN_ITS_DTYPE,
        "turns": "All can send at the same time: isend and irecv start without waiting.",
        "kept": KEPT_HINT,
        "cost": "Send the whole tensor in one message. How large it is does not matter.",
        "forbidden": "Use send, recv, isend and irecv: each tensor goes to one rank only.",
        "raised": _IN_A_CIRCLE + " A tensor may have 0 numbers: then recv must be told its src.",
    },
    allowed=("send", "recv"),
)
