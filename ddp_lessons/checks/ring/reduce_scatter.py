"""
Task 03.1: ring reduce-scatter.

On each rank: `_act`. In the kernel: the rest.
"""

from functools import partial
from itertools import product

import torch

from ddp_lessons.checks.kit import VALUES, Expected, Mistake, Task
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


def _act(context, reduce_scatter):
    device = sending_device(context)
    return call_watched(
        context,
        reduce_scatter,
        lambda case: [[chunk.to(device) for chunk in chunks_of(case, context.rank)]],
    )


def _sum(parts, times=None):
    """
    Return the sum of the parts of all ranks. Part r counts `times[r]` times; None: once each.
    """
    exact = torch.float64 if parts[0].is_floating_point() else torch.int64
    table = torch.stack([part.to(exact) for part in parts])
    return (torch.tensor(times or [1] * len(parts))[:, None] * table).sum(0).to(parts[0].dtype)


def _parts(case, chunk):
    return [chunks_of(case, rank)[chunk] for rank in range(case.world_size)]


def _sums_with(times, case, rank):
    """
    Return all sums of a rank's chunk that count each rank's part by one of the numbers `times`.
    """
    each = product(times, repeat=case.world_size)
    return [_sum(_parts(case, rank), counts) for counts in each]


def _sums_of_mixed(case, rank):
    """
    Return every sum of one chunk from each rank, whichever chunk that is; [] if lengths differ.
    """
    if len({*case["lengths"]}) > 1:
        return []
    return [_sum(parts) for parts in product(*(chunks_of(case, r) for r in range(case.world_size)))]


def _others_bytes(case, rank):
    return bytes_of_chunks(case, [chunk for chunk in range(case.world_size) if chunk != rank])


_SENT_DTYPE, _COSTS = ring_costs(
    lambda case: case.world_size - 1,
    _others_bytes,
    longest_chunk_bytes,
    "A rank takes w - 1 steps, and sends one message in each: one whole chunk. Its own chunk r is "
    "finished when it arrives, and is not sent on.",
)

reduce_scatter = Task(
    number="03.1",
    changed_in="0.2.0",
    name="reduce_scatter",
    twice=True,
    cases=cases_of_chunks,
    act=_act,
    ok="w - 1 messages a rank, to the left, every chunk but its own",
    draw=lambda case_result: draw_ring(case_result, ["grow"]),
    hints=(
        "Follow one chunk only, say chunk 0. It ends on rank 0, and each step takes it one rank to "
        "the left, from rank 3 to rank 2, for example. At which rank must it start, so that it has "
        "visited all ranks when it arrives?",
        "Chunk r ends on rank r, so it starts at rank r - 1, and goes to r - 2 first. So rank r "
        "sends its own numbers of chunk r + 1 in the first step.",
        "In the next step a rank sends the sum of the chunk that has just arrived and of its own "
        "numbers of that chunk: first of chunk r + 2, then of r + 3, and so on around the ring.",
        "passing = chunks[(rank + 1) % world_size].clone() before the loop; in step s, receive the "
        "numbers of chunk (rank + 2 + s) % world_size; then passing = arrived + chunks[that one].",
    ),
    expected=Expected(lambda case, rank: _sum(_parts(case, rank))),
    mistakes=(
        EARLY_USE,
        _SENT_DTYPE,
        Mistake(
            "wrong-chunk",
            "Rank r must return the sum of chunk r. A chunk visits w ranks in w - 1 steps, so it "
            "starts at the rank to which its last rank would send it next.",
            "This is the sum of another rank's chunk.",
            gives=lambda case, rank: [
                _sum(_parts(case, chunk)) for chunk in range(case.world_size) if chunk != rank
            ],
        ),
        Mistake(
            "twice",
            "Each rank adds its own numbers to a chunk once, also the rank at which the chunk "
            "starts, and the rank at which it ends.",
            "The numbers of some rank are in the sum twice.",
            gives=partial(_sums_with, (1, 2)),
        ),
        Mistake(
            "not-all",
            "Send on the sum of the chunk that arrived and of your own numbers, not one of the two "
            "alone.",
            "The numbers of some rank are not in the sum.",
            gives=partial(_sums_with, (1, 2, 0)),
        ),
        Mistake(
            "mixed",
            "Add your own numbers of the chunk that has arrived, which is the chunk that the right "
            "neighbour has just sent. Rank r begins with chunk r + 1, and in step s it adds to "
            "chunk r + 2 + s.",
            "Some rank has added its numbers of another chunk.",
            gives=_sums_of_mixed,
        ),
        VALUES,
        *_COSTS,
        TO_THE_RIGHT,
        *RING_WORDS,
        Mistake(
            "died",
            "A message that is longer than the tensor it arrives in ends the process. Make that "
            "tensor as long as the chunk that comes, and of its dtype.",
        ),
        Mistake(
            "dtype", "The sum has the dtype of the chunks. torch.sum makes int64 of int32: use +."
        ),
        Mistake(
            "input-changed",
            "The list and its chunks belong to the caller, and must stay as they were: arrived + "
            "own makes a new tensor, and += changes the left side in place.",
        ),
    ),
    allowed=("send", "recv"),
)
