"""
Task 03.2: ring all-gather.

On each rank: `_act`. In the kernel: the rest.
"""

from itertools import permutations

from ddp_lessons.checks.kit import VALUES, Expected, Mistake, Task
from ddp_lessons.checks.kit.comparing import find_difference
from ddp_lessons.checks.kit.mistake_choice import last_result
from ddp_lessons.checks.kit.shared.message_rounds import sending_device
from ddp_lessons.checks.kit.shared.watched_calls import EARLY_USE, call_watched
from ddp_lessons.checks.ring.rings import (
    RING_WORDS,
    TO_THE_RIGHT,
    bytes_of_chunks,
    cases_of_chunks,
    chunks_of,
    draw_ring,
    longest_chunk_bytes,
    ring_costs,
)


def _act(context, all_gather):
    device = sending_device(context)
    return call_watched(
        context,
        all_gather,
        lambda case: [
            chunks_of(case, context.rank)[context.rank].to(device),
            list(case["lengths"]),
        ],
    )


def _chunks(case):
    return [chunks_of(case, rank)[rank] for rank in range(case.world_size)]


def _as_list(view):
    got = last_result(view)
    return list(got) if isinstance(got, tuple) else got


def _all_alike(case, rank, chunk):
    """
    Return a list in which every place but the rank's own holds the same chunk.
    """
    chunks = _chunks(case)
    return [chunks[rank if place == rank else chunk] for place in range(case.world_size)]


def _is_alike(view, of_neighbour):
    if not view.is_off or view.case.world_size < 3:
        return False
    left = next((event.peer for event in view.events if event.is_receive), None)
    chunks = [c for c in range(view.case.world_size) if (c == left) == of_neighbour]
    alike = [_all_alike(view.case, view.rank, chunk) for chunk in chunks]
    return any(view.is_near(one) for one in alike)


def _lacks_own(view):
    if not view.is_off:
        return False
    own = view.expected[view.rank]
    others = (got for place, got in enumerate(view.got) if place != view.rank)
    return find_difference([*others], [c for c in view.expected if c is not own]) is None


def _most_bytes(case, rank):
    # Each chunk goes to all other ranks, so a rank may have to send all chunks but the smallest.
    each = [bytes_of_chunks(case, [chunk]) for chunk in range(case.world_size)]
    return sum(each) - min(each)


_SENT_DTYPE, _COSTS = ring_costs(
    lambda case: case.world_size - 1,
    _most_bytes,
    longest_chunk_bytes,
    "A rank takes w - 1 steps, and sends one message in each: one whole chunk. Its own chunk need "
    "not come back to it.",
)

all_gather = Task(
    number="03.2",
    changed_in="0.2.0",
    name="all_gather",
    twice=True,
    cases=cases_of_chunks,
    act=_act,
    ok="w - 1 messages a rank, to the left, each one chunk",
    draw=lambda case_result: draw_ring(case_result, ["copy"]),
    hints=(
        "Each chunk travels around the ring once. A rank that receives a chunk stores it, and "
        "sends it on in the next step.",
        "In the first step rank r sends its own chunk to the left, and chunk r + 1 arrives from "
        "the right. In the next step rank r sends chunk r + 1.",
        "So in step s, rank r sends chunk r + s and receives chunk r + s + 1.",
        "parts = [chunk.new_empty(n) for n in lengths]; parts[rank] gets the chunk; in step s send "
        "parts[(rank + s) % world_size] and receive into parts[(rank + s + 1) % world_size].",
    ),
    expected=Expected(lambda case, rank: _chunks(case), gave=_as_list),
    mistakes=(
        EARLY_USE,
        Mistake(
            "no-list",
            "Return a list with one tensor for each rank, in rank order.",
            "It must return a list of as many tensors as there are ranks.",
            shows=lambda view: (
                not isinstance(view.got, list) or len(view.got) != view.case.world_size
            ),
        ),
        _SENT_DTYPE,
        Mistake(
            "order",
            "Store each chunk at the place of the rank from which it comes. The chunk that arrives "
            "in step s is that of rank r + s + 1.",
            "All chunks are there, in another order.",
            gives=lambda case, rank: [list(order) for order in permutations(_chunks(case))],
        ),
        Mistake(
            "own-missing",
            "No message brings a rank its own chunk: put a copy of it at place r.",
            "Its own chunk is missing.",
            shows=_lacks_own,
        ),
        Mistake(
            "own-again",
            "Send your own chunk in the first step only. After that, send the chunk that arrived "
            "in the step before.",
            "Every chunk that arrived is the neighbour's own chunk.",
            shows=lambda view: _is_alike(view, of_neighbour=True),
        ),
        Mistake(
            "one-buffer",
            "Receive each chunk into its own tensor: the next chunk overwrites a tensor that is "
            "used again.",
            "All places hold the chunk that arrived last.",
            shows=lambda view: _is_alike(view, of_neighbour=False),
        ),
        VALUES,
        *_COSTS,
        TO_THE_RIGHT,
        *RING_WORDS,
        Mistake(
            "died",
            "A message that is longer than the tensor it arrives in ends the process. Take that "
            "tensor's length from lengths, and its dtype from chunk.",
        ),
        Mistake("input-changed", "chunk and lengths belong to the caller: leave both as they are."),
        Mistake(
            "view",
            "The caller may change the tensors that you return: put a copy of chunk in the list.",
        ),
    ),
    allowed=("send", "recv"),
)
