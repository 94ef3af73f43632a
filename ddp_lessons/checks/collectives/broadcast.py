"""
Task 02.4: a broadcast in log2(w) rounds.

On each rank: `_act`. In the kernel: the rest.
"""

from ddp_lessons.checks.collectives.tensors import LOST_DIGITS, MUST_FIT, tensor_of
from ddp_lessons.checks.kit import VALUES, Case, Expected, Mistake, Task
from ddp_lessons.checks.kit.shared.message_rounds import rounds_of_sends, sending_device
from ddp_lessons.checks.kit.shared.repeated_calls import KEPT_HINT
from ddp_lessons.checks.kit.shared.watched_calls import EARLY_USE, call_watched
from ddp_lessons.pictures import steps_picture


def _cases(draw):
    yield Case(4, {"src": 0, "shape": [2], "dtype": "float32"}, seed=0)
    for world_size in (1, 2, 3, 4):
        data = {"src": world_size - 1, "shape": [draw.randint(8, 40)], "dtype": "float64"}
        yield Case(world_size, data)
    yield Case(3, {"src": 0, "shape": [draw.randint(2, 5), 3], "dtype": "int64"})
    yield Case(4, {"src": draw.randint(1, 2), "shape": [], "dtype": "float32"})
    yield Case(3, {"src": draw.randint(0, 2), "shape": [0], "dtype": "float64"})
    yield Case(4, {"src": draw.randint(0, 3), "shape": [9], "dtype": "float64", "calls": 2})
    # From 7 ranks on, a binary tree (two sends for each rank) takes more rounds than necessary.
    for world_size in range(5, 17):
        data = {"src": draw.randrange(world_size), "shape": [3], "dtype": "float64"}
        yield Case(world_size, data, is_simulated=True)


def _act(context, broadcast):
    device = sending_device(context)
    return call_watched(
        context,
        broadcast,
        lambda case: [tensor_of(case, context.rank).to(device), context["src"]],
    )


def _sends_too_often(view):
    num_sent, w = (
        sum(names.count("send") for names in view.case_result.call_names),
        view.case.world_size,
    )
    if view.rank or num_sent < w:
        return ""
    return f"All ranks have the tensor, but they sent {num_sent} messages; {w - 1} are enough."


def _last_round(view):
    return max(rounds_of_sends(view.case_result.traces)[view.rank], default=0)


def _fact_of_rounds(view):
    most, last = (view.case.world_size - 1).bit_length(), _last_round(view)
    return f"It sends in round {last}; {most} rounds are enough." if last > most else ""


def _sends_to_all(view):
    return view.case_result.call_names[view.rank].count("send") == view.case.world_size - 1


def _draw(case_result):
    w, src = case_result.case.world_size, case_result.case["src"]
    rounds_of = rounds_of_sends(case_result.traces)
    moves = [[] for _ in range(max((max(rounds, default=0) for rounds in rounds_of), default=0))]
    for events, rounds in zip(case_result.traces, rounds_of, strict=True):
        sends = [event for event in events if event.is_send]
        for send, number in zip(sends, rounds, strict=True):
            moves[number - 1].append((send.rank, send.peer, [0]))
    has_it = [{src}]
    for step in moves:
        has_it.append(has_it[-1] | {receiver for _, receiver, _ in step})
    held = [[[[src] if rank in has else []] for rank in range(w)] for has in has_it]
    return steps_picture(held, moves)


broadcast = Task(
    number="02.4",
    name="broadcast",
    twice=True,
    cases=_cases,
    act=_act,
    ok="w - 1 messages in log2(w) rounds, rounded up",
    draw=_draw,
    hints=(
        "A rank that has received the tensor can send it on. So the number of ranks that have it "
        "can double in each round: 1, 2, 4.",
        "Count the ranks from src: place = (rank - src) % world_size. Before the round with "
        "distance d, places 0 to d - 1 have the tensor.",
        "In the round with distance d, place p below d sends to place p + d, if there is one. "
        "Places from d to 2d - 1 receive.",
        "if place < d and place + d < world_size: send to rank (rank + d) % world_size; elif "
        "d <= place < 2 * d: receive from (rank - d) % world_size.",
    ),
    expected=Expected(lambda case, rank: tensor_of(case, case["src"])),
    mistakes=(
        EARLY_USE,
        Mistake(
            "other-root",
            "The tensor is rank src's, and src is not always 0: count places from src.",
            "This rank has another rank's tensor, and not that of src.",
            gives=lambda case, rank: [
                tensor_of(case, other) for other in range(case.world_size) if other != rank
            ],
        ),
        Mistake(
            "not-everywhere",
            "Go through the rounds for this number of ranks: in which round does each rank "
            "receive?",
            "This rank still has its own tensor.",
            gives=lambda case, rank: [tensor_of(case, rank)],
        ),
        LOST_DIGITS,
        VALUES,
        Mistake(
            "cost",
            "Each rank except src receives once; a rank that has the tensor needs no message.",
            shows=_sends_too_often,
        ),
        Mistake(
            "one-sender",
            "A rank that has received the tensor can send it, too, in the same round as src.",
            shows=lambda view: _sends_to_all(view) and _fact_of_rounds(view),
        ),
        Mistake(
            "chain",
            "Let every rank that has the tensor send in every round, until all have it.",
            shows=_fact_of_rounds,
        ),
        Mistake("kept", KEPT_HINT),
        Mistake(
            "input-changed",
            "Leave the argument as it is: got = tensor.clone() comes first.",
        ),
        Mistake(
            "view",
            "Leave the argument as it is, and return a copy: got = tensor.clone() comes first.",
        ),
        Mistake(
            "deadlock",
            "If the number of ranks is no power of 2, not every rank has a partner in the last "
            "round: with 3 ranks, place 1 has none. For each round write down which rank sends to "
            "which: every send needs a recv in the same round, from the rank that sends.",
        ),
        Mistake(
            "raised",
            "Not every rank has a partner in the last round: with 3 ranks there is no rank 3. "
            "Places count from src, but send and recv take ranks. And a tensor may have 0 "
            "numbers: then recv needs its argument src.",
        ),
        Mistake("died", MUST_FIT),
        Mistake("forbidden", "Use only send and recv: plan the rounds yourself."),
    ),
    allowed=("send", "recv"),
)
