"""
Task 03.1: ring reduce-scatter.
"""

from itertools import product

import torch

from ddp_lessons.checks.kit import Task, equal
from ddp_lessons.checks.kit.material.digits import refuse_lost_digits
from ddp_lessons.checks.kit.material.early_use import call_watched, refuse_early
from ddp_lessons.checks.kit.material.rounds import sending_device
from ddp_lessons.checks.ring.rings import (
    RING_MISTAKES,
    cases_of_chunks,
    chunks_of,
    draw_ring,
    judge_ring,
    refuse_long_messages,
)
from ddp_lessons.ranks.diagnosis.telling import rank_names


def _act(here, reduce_scatter):
    device = sending_device(here)
    return call_watched(
        here,
        reduce_scatter,
        lambda case: [[chunk.to(device) for chunk in chunks_of(case, here.rank)]],
    )


def _judge(played):
    refuse_early(played)
    w = played.case.world_size
    chunks = list(zip(*played.before, strict=True))  # [chunk][rank]
    for rank, got in enumerate(played.results):
        if isinstance(got, torch.Tensor) and got.dtype == chunks[0][0].dtype:
            _name_the_sum(played, rank, got, chunks)
        played.expect(rank, got, sum(chunks[rank]))
    own_bytes = [parts[0].nbytes for parts in chunks]
    refuse_long_messages(played, max(own_bytes), sum(own_bytes))
    judge_ring(played, w - 1, [sum(own_bytes) - own for own in own_bytes])


def _name_the_sum(played, rank, got, chunks):
    both = {"got": got, "expected": sum(chunks[rank])}
    if equal(got, both["expected"]):
        return
    others = [c for c in range(len(chunks)) if c != rank and equal(got, sum(chunks[c]))]
    if others:
        fact = f"This is the sum of chunk {others[0]}, not of chunk {rank}."
        raise played.wrong("wrong-chunk", rank, **both, fact=fact)
    if len(chunks) > 1 and got.is_floating_point() and equal(got, both["expected"] / len(chunks)):
        raise played.wrong("average", rank, **both, fact="This is the mean, not the sum.")
    for parts in chunks:
        times = _times_in(got, parts)
        if times is None:
            continue
        absent = [r for r, count in enumerate(times) if count == 0]
        if absent:
            fact = f"Numbers of {rank_names(absent)} are not in it."
            raise played.wrong("not-all", rank, **both, fact=fact)
        doubled = [r for r, count in enumerate(times) if count == 2]
        fact = f"Numbers of {rank_names(doubled)} are in it twice."
        raise played.wrong("twice", rank, **both, fact=fact)
    refuse_lost_digits(played, rank, got, both["expected"], chunks[rank], "sent-dtype")
    which = _chunks_in(got, chunks)
    if which is not None:
        parts = [f"chunk {chunk} of rank {r}" for r, chunk in enumerate(which) if chunk is not None]
        fact = f"This is the sum of {', '.join(parts)}."
        raise played.wrong("mixed", rank, **both, fact=fact)


def _times_in(got, parts):
    """
    Return how often (0, 1 or 2) each rank's numbers are in a sum, or None if it is no such sum.
    """
    if got.shape != parts[0].shape or not len(got):
        return None
    exact = torch.float64 if got.is_floating_point() else torch.int64
    table = torch.stack([part.to(exact) for part in parts])  # (w, n)
    for times in product(range(3), repeat=len(parts)):
        if torch.equal((torch.tensor(times)[:, None] * table).sum(dim=0).to(got.dtype), got):
            return times
    return None


def _chunks_in(got, chunks):
    """
    Return for each rank which of its chunks (or None) is in a sum, or None if it is no such sum.
    """
    if len({part.shape for parts in chunks for part in parts} | {got.shape}) > 1 or not len(got):
        return None
    for which in product([None, *range(len(chunks))], repeat=len(chunks)):
        terms = [chunks[chunk][rank] for rank, chunk in enumerate(which) if chunk is not None]
        if terms and equal(sum(terms), got):
            return which
    return None


reduce_scatter = Task(
    number="03.1",
    name="reduce_scatter",
    twice=True,
    cases=cases_of_chunks,
    act=_act,
    judge=_judge,
    ok="w - 1 messages a rank, every chunk but its own",
    draw=lambda played: draw_ring(played, ["grow"]),
    hints=(
        "Follow one chunk only: it visits every rank, takes that rank's numbers along, and comes "
        "home last. w of them are on their way at the same time, each one rank behind the next.",
        "Chunk r is finished on rank r, so it starts at rank r + 1. In the first step rank r "
        "sends its own numbers of chunk r - 1.",
        "What leaves in the next step is what has just arrived, plus this rank's own numbers of "
        "that chunk. After step 0 that is chunk r - 2, then r - 3, and so on round the circle.",
        "passing = chunks[rank - 1].clone() before the loop; in step s, receive the numbers of "
        "chunk (rank - 2 - s) % world_size; then passing = arrived + chunks[that one].",
    ),
    mistakes=RING_MISTAKES
    | {
        "whole-tensor": "Only one chunk travels in a step. The others wait for their turn.",
        "wrong-chunk": "Ask where a chunk must start to end at home: w - 1 steps are one less "
        "than once round.",
        "not-all": "Pass on the sum of what came and your own numbers, not one of them alone.",
        "twice": "Each rank adds its numbers to a chunk once: also where a chunk starts, and where "
        "it ends.",
        "average": "The sum is asked for. Leave it to the caller to divide.",
        "mixed": "Add your own numbers of the very chunk that has arrived. It is the one that the "
        "left neighbour has just sent, or the right one if you run to the left.",
        "too-long": "Send one chunk in a step, and no more of it than it has.",
        "cost": "w - 1 steps, and one message a step: send a chunk whole, and let it end at home.",
        "filled-up": "Send no more than a chunk has: chunks differ in length, and all know how.",
        "died": "A message that is longer than the tensor it arrives in ends the process. Make "
        "that tensor as long as the chunk that comes, and of its dtype.",
        "dtype": "The sum has the dtype of the chunks. torch.sum makes int64 of int32: use +.",
        "input-changed": "The list and its chunks are your caller's: return a new tensor, such as "
        "arrived + own.",
    },
    allowed=("send", "recv"),
)
