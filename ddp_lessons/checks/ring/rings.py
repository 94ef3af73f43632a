"""
Cases, hints and common mistakes of the three ring tasks, and the picture of a ring.
"""

import torch

from ddp_lessons.checks.kit import Case, Mistake
from ddp_lessons.checks.kit.judging import judge_own
from ddp_lessons.checks.kit.shared.lost_digits import full_numbers
from ddp_lessons.checks.kit.shared.message_rounds import rounds_in_turns, rounds_of_sends
from ddp_lessons.checks.kit.shared.repeated_calls import KEPT_HINT
from ddp_lessons.errors import WrongAnswer
from ddp_lessons.pictures import steps_picture, timeline_picture, timeline_tracks
from ddp_lessons.ranks.diagnosis.wording import rank_names
from ddp_lessons.trace import merge

RING_WORDS = (
    Mistake(
        "forbidden",
        "Use send, recv, isend, irecv or batch_isend_irecv: you write the collective yourself.",
    ),
    Mistake("kept", KEPT_HINT),
    Mistake(
        "deadlock",
        "Every rank blocks in the same call, send or recv, so no rank makes the other call. Start "
        "one of the two with isend or irecv, and wait for it after the other.",
    ),
)
"""
Hints for common mistakes, worded for a ring.
"""


def _sends_of(view):
    """
    Return a rank's events that are sends, in order.
    """
    return [event for event in view.events if event.is_send]


def _fact_of_peers(view):
    """
    Return a sentence that names the ranks to which this rank sends, or "" for fewer than two.
    """
    peers = sorted({send.peer for send in _sends_of(view)})
    if len(peers) < 2:
        return ""
    return f"It sends to {rank_names(peers)}. In a ring, a rank sends to only one other rank."


def _fact_of_direction(view):
    """
    Return a sentence that says that this rank sends to its right neighbour, or "" if it does not.
    """
    right = (view.rank + 1) % view.case.world_size
    if view.case.world_size < 3 or all(send.peer != right for send in _sends_of(view)):
        return ""
    return f"The values are right, but it sends to {rank_names([right])}, its right neighbour."


TO_THE_RIGHT = Mistake(
    "to-the-right",
    "This ring turns the other way: rank r sends to rank r - 1, and receives from rank r + 1. The "
    "chunks then travel the other way, too, so they start at other ranks.",
    shows=_fact_of_direction,
)
"""
The mistake of a ring that turns as the lesson's ring does, where the task asks for the other one.
"""


def _fact_of_cost(view, num_steps, most_bytes):
    """
    Return a sentence that says how much a rank sends, or "" if that is not too much.
    """
    sends = _sends_of(view)
    num_bytes = sum(send.input_bytes for send in sends)
    if len(sends) <= num_steps and num_bytes <= most_bytes:
        return ""
    return (
        f"It sends {num_bytes} bytes in {len(sends)} messages; {most_bytes} bytes in {num_steps} "
        "messages are enough."
    )


def _fact_of_turns(view, num_steps):
    """
    Return a sentence that says in which round a rank's last message moves, or "" if not too late.
    """
    most = num_steps * rounds_in_turns(view.case.world_size)
    last = max(rounds_of_sends(view.case_result.traces)[view.rank], default=0)
    if last <= most:
        return ""
    return (
        f"Its last message can only move in round {last}, because it waits for earlier messages; "
        f"{most} rounds are enough for {num_steps} steps."
    )


def _fact_of_length(view, chunk_bytes):
    """
    Return a sentence that says how long a rank's longest message is.

    If that message is no longer than a chunk, return "".
    """
    longest = max(_sends_of(view), key=lambda send: send.input_bytes, default=None)
    if longest is None or longest.input_bytes <= chunk_bytes:
        return ""
    return (
        f"It sends {longest.input_bytes} bytes in one message, as {longest.dtype}; the longest "
        f"chunk has {chunk_bytes}."
    )


def ring_costs(num_steps, most_bytes, chunk_bytes, cost_hint):
    """
    Return the mistakes of rings that send too much.

    Args:
        num_steps: Function of a Case: how many messages a rank may send.
        most_bytes: Function (case, rank): how many bytes the rank may send in all messages.
        chunk_bytes: Function of a Case: how many bytes one message may have.
        cost_hint: The hint for too many messages.

    Returns:
        tuple: The Mistake for messages of another dtype, and a tuple of all other Mistakes.
    """

    def sends_too_much(view):
        return _fact_of_cost(view, num_steps(view.case), most_bytes(view.case, view.rank))

    def sends_too_long(view):
        is_split = len(_sends_of(view)) > num_steps(view.case)
        longest = _fact_of_length(view, chunk_bytes(view.case))
        return longest or (not is_split and sends_too_much(view))

    def sends_other_dtype(view):
        others = sorted({send.dtype for send in _sends_of(view)} - {view.case["dtype"]})
        if others and (view.is_off or sends_too_long(view)):
            return (
                f"It sends {', '.join(others)}, and the dtype of the argument is "
                f"{view.case['dtype']}."
            )
        return ""

    return Mistake(
        "sent-dtype", "Send and add in the dtype of the argument.", shows=sends_other_dtype
    ), (
        Mistake(
            "too-long",
            "Send one chunk in a step, and no more numbers than the chunk has: chunks differ in "
            "length, and every rank knows each length.",
            shows=sends_too_long,
        ),
        Mistake(
            "not-ring",
            "Let each rank send to one neighbour only, and receive from the other neighbour.",
            shows=_fact_of_peers,
        ),
        Mistake("cost", cost_hint, shows=sends_too_much),
        Mistake(
            "turns",
            "Let all ranks send in the same step: isend or irecv starts without waiting.",
            shows=lambda view: _fact_of_turns(view, num_steps(view.case)),
        ),
    )


def bytes_of_chunks(case, chunks):
    """
    Return how many bytes the chunks with these numbers have together.
    """
    return sum(case["lengths"][c] for c in chunks) * getattr(torch, case["dtype"]).itemsize


def longest_chunk_bytes(case):
    """
    Return how many bytes the longest chunk of a case has.
    """
    return max(bytes_of_chunks(case, [c]) for c in range(case.world_size))


def draw_ring(case_result, phases):
    """
    Draw the chunks of a ring step by step. If the ring is not right yet, draw its messages.

    Args:
        case_result: The CaseResult. Its chunks are equally long.
        phases: A list, in order: "grow" for a reduce-scatter, "copy" for an all-gather.
    """
    w = case_result.case.world_size
    sends = [[event for event in events if event.is_send] for events in case_result.traces]
    try:
        judge_own(case_result)
        is_right = {len(own) for own in sends} == {len(phases) * (w - 1)}
    except WrongAnswer:
        is_right = False
    if not is_right:
        return timeline_picture(timeline_tracks(merge(case_result.traces)), "events, in order")
    ahead = 1 if sends[0][0].peer == 1 else -1
    start = [
        [[rank] if phases[0] == "grow" or chunk == rank else [] for chunk in range(w)]
        for rank in range(w)
    ]
    held, moves = [start], []
    for phase in phases:
        for step in range(w - 1):
            # A chunk reaches its own rank in the last step of "grow", and leaves its own rank in
            # the first step of "copy".
            away = w - 1 - step if phase == "grow" else -step
            steps = [(r, (r + ahead) % w, (r + ahead * away) % w) for r in range(w)]
            now = [list(row) for row in held[-1]]
            for sender, receiver, chunk in steps:
                own = held[-1][receiver][chunk] if phase == "grow" else []
                now[receiver][chunk] = sorted({*held[-1][sender][chunk], *own})
            held.append(now)
            moves.append([(sender, receiver, [chunk]) for sender, receiver, chunk in steps])
    return steps_picture(held, moves)


def cases_of_chunks(draw):
    """
    Yield the cases of a task that gets chunks: of equal lengths, of unequal ones, and empty ones.
    """
    yield Case(4, {"lengths": [4, 4, 4, 4], "dtype": "float32"}, seed=0)
    # The first chunk that rank 2 receives is longer than its own.
    longer = draw.randint(6, 9)
    yield Case(3, {"lengths": [longer, draw.randint(3, 5), 2], "dtype": "float64"})
    yield Case(1, {"lengths": [draw.randint(1, 9)], "dtype": "float32"})
    yield Case(2, {"lengths": [draw.randint(3, 9), draw.randint(0, 2)], "dtype": "int64"})
    # Two ranks only: with more, an answer that sends int64 for int32 would end the processes.
    yield Case(2, {"lengths": [draw.randint(3, 9), draw.randint(3, 9)], "dtype": "int32"})
    lengths = [0, *(draw.randint(1, 9) for _ in range(3))]
    yield Case(4, {"lengths": draw.sample(lengths, 4), "dtype": "bfloat16"})
    lengths = [draw.randint(5, 9) for _ in range(3)]
    yield Case(3, {"lengths": lengths, "dtype": "float32", "calls": 2})
    # An answer that uses the steps of 4 ranks adds or passes on a wrong chunk here. Seed 0 gives
    # small numbers: sums of larger ones over so many ranks would not be exact.
    yield Case(5, {"lengths": [3] * 5, "dtype": "float64"}, seed=0, is_simulated=True)


def chunks_of(case, rank):
    """
    Return a rank's chunks at the beginning of a case.
    """
    numbers = full_numbers(case, rank, [sum(case["lengths"])], getattr(torch, case["dtype"]))
    return [chunk.clone() for chunk in numbers.split(case["lengths"])]
