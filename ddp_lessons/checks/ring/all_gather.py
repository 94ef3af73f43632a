"""
Task 03.2: ring all-gather.
"""

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
)


def _act(here, all_gather):
    device = sending_device(here)
    return call_watched(
        here,
        all_gather,
        lambda case: [chunks_of(case, here.rank)[here.rank].to(device), list(case["lengths"])],
    )


def _judge(played):
    refuse_early(played)
    chunks, w = played.before, played.case.world_size
    for rank, got in enumerate(played.results):
        if not isinstance(got, list | tuple) or len(got) != w:
            fact = f"It must return a list of {w} tensors."
            raise played.wrong("no-list", rank, got=got, fact=fact)
    for rank, got in enumerate(played.results):
        _name_the_chunks(played, rank, got, chunks)
        for part, expected in zip(got, chunks, strict=True):
            refuse_lost_digits(played, rank, part, expected, [expected], "sent-dtype")
            played.expect(rank, part, expected)
    # Each chunk is received by all others, so a rank may have to send all but the smallest.
    most = sum(chunk.nbytes for chunk in chunks) - min(chunk.nbytes for chunk in chunks)
    judge_ring(played, w - 1, [most] * w)


def _name_the_chunks(played, rank, got, chunks):
    w = len(chunks)
    if w < 3 or all(map(equal, got, chunks)):
        return
    which = [next((c for c in range(w) if equal(part, chunks[c])), None) for part in got]
    others = {c for place, c in enumerate(which) if place != rank}
    both = {"got": which, "expected": list(range(w))}
    for mistake, applies, fact in (
        ("order", set(which) == set(range(w)), "All chunks are there, in another order."),
        ("own-missing", which[rank] is None and None not in others, "Its own chunk is missing."),
        ("own-again", others == {_neighbour(played, rank)},
         "All that came is the neighbour's own chunk."),
        ("one-buffer", len(others) == 1 and None not in others, "All places hold what came last."),
        ("order", any(c not in (None, place) for place, c in enumerate(which)),
         "A chunk is in the place of another."),
    ):  # fmt: skip
        if applies:
            fact += " These are the chunks, by their ranks."
            raise played.wrong(mistake, rank, **both, fact=fact)


def _neighbour(played, rank):
    return next((event.peer for event in played.traces[rank] if event.is_receive), None)


all_gather = Task(
    number="03.2",
    name="all_gather",
    twice=True,
    cases=cases_of_chunks,
    act=_act,
    judge=_judge,
    ok="w - 1 messages a rank, each one chunk",
    draw=lambda played: draw_ring(played, ["copy"]),
    hints=(
        "Each chunk goes once round the circle. Who gets it keeps it, and passes it on.",
        "In the first step rank r sends its own chunk, and chunk r - 1 arrives from the left. In "
        "the next step it sends that one.",
        "So in step s chunk r - s leaves rank r, and chunk r - s - 1 arrives.",
        "parts = [chunk.new_empty(n) for n in lengths]; parts[rank] gets the chunk; in step s send "
        "parts[(rank - s) % world_size] and receive into parts[(rank - s - 1) % world_size].",
    ),
    mistakes=RING_MISTAKES
    | {
        "cost": "w - 1 steps, and one message a step: send a chunk whole. Your own need not come "
        "home.",
        "filled-up": "Send no more than a chunk has: chunks differ in length, and all know how.",
        "no-list": "Return a list with one tensor for each rank, in rank order.",
        "order": "Put what arrives where it belongs. In step s it comes from s + 1 ranks away.",
        "own-missing": "A rank's own chunk does not come by message: put a copy in its place.",
        "one-buffer": "Receive each chunk into a tensor of its own: the next one overwrites it.",
        "own-again": "Send your own chunk in the first step only. Then send what arrived last.",
        "died": "A message that is longer than the tensor it arrives in ends the process. Take "
        "that tensor's length from lengths, and its dtype from chunk.",
        "input-changed": "chunk and lengths are your caller's: leave both as they are.",
        "view": "What you return is your caller's to change: put a copy of chunk in it.",
    },
    allowed=("send", "recv"),
)
