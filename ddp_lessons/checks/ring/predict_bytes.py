"""
Task 03.5: predict bytes.
"""

import torch

from ddp_lessons.checks.kit import Case, Task, words
from ddp_lessons.checks.kit.material.rounds import sending_device
from ddp_lessons.collectives import naive
from ddp_lessons.costs import sent_bytes
from ddp_lessons.pictures import holdings_picture
from ddp_lessons.ring import textbook
from ddp_lessons.trace import trace

_WAYS = {"hub": naive, "ring": textbook}


def _cases(draw):
    yield Case(4, {"num_elements": 10, "dtype": "float32"}, seed=0)
    for world_size, dtype in ((1, "float32"), (2, "bfloat16"), (3, "float64"), (4, "int64")):
        num_elements = world_size * draw.randint(2, 30) + world_size - 1
        yield Case(world_size, {"num_elements": num_elements, "dtype": dtype})
    yield Case(4, {"num_elements": draw.randint(1, 3), "dtype": "float64"})
    yield Case(1, {"num_elements": draw.randint(10**6, 10**9), "dtype": "float32", "of": 48})


def _act(here, predict_bytes):
    numbers = torch.zeros(0, dtype=getattr(torch, here["dtype"]), device=sending_device(here))
    world_size = here.case.data.get("of", here.world_size)
    ranks = range(world_size) if world_size > here.world_size else [here.rank]
    facts = world_size, here["num_elements"], numbers.element_size()
    told = [
        [way, rank, here.call(predict_bytes, way, rank, *facts)] for way in _WAYS for rank in ranks
    ]
    counted = {}
    for way, calls in _WAYS.items():
        if world_size > here.world_size:  # too many to run: the package counts every message
            counted[way] = sent_bytes("all_reduce", way, *facts)
            continue
        with trace() as events:
            calls.all_reduce(numbers.new_zeros(here["num_elements"]))
        sent = sum(event.input_bytes for event in events if event.is_send)
        counted[way] = [sent if rank == here.rank else None for rank in range(world_size)]
    return [(way, rank, got, counted[way][rank]) for way, rank, got in told]


def _judge(played):
    w, rows = played.case.data.get("of", played.case.world_size), []
    for seen in played.seen:
        for way, rank, got, expected in seen.kept:
            if isinstance(got, bool) or not isinstance(got, int | float):
                raise played.wrong("no-number", seen.rank, got=got, fact="It must be a number.")
            rows.append((way, rank, got, expected, seen.rank))
    for way, rank, got, expected, where in rows:
        if got != expected:
            both = {"got": got, "expected": expected}
            mistake = _name_the_count(played.case, w, [row[:4] for row in rows if row[0] == way])
            fact = f"{way}: rank {rank} of {w} really sends {expected} bytes."
            raise played.wrong(mistake, where, **both, fact=fact)


def _name_the_count(case, w, rows):
    """
    Return the mistake that explains what was foretold of one way on all ranks of a case.
    """
    n, size = case["num_elements"], getattr(torch, case["dtype"]).itemsize
    length, num_longer = divmod(n, w)
    lengths = [length + (chunk < num_longer) for chunk in range(w)]
    if w > case.world_size and all(got == rows[0][3] for _, _, got, _ in rows):
        return "asked"
    for mistake, bytes_of in (
        ("numbers", lambda rank, sent: sent / size),
        ("four-bytes", lambda rank, sent: sent / size * 4),
        ("together", lambda rank, sent: 2 * (w - 1) * n * size),
        ("one-half", lambda rank, sent: (n - lengths[rank]) * size),
        ("received", lambda rank, sent: (2 * n - lengths[rank - 1] - lengths[rank]) * size),
        ("second-half", lambda rank, sent: 2 * (n - lengths[rank]) * size),
    ):
        if all(got == bytes_of(rank, sent) for _, rank, got, sent in rows):
            return mistake
    return "hub-root" if rows[0][0] == "hub" else "uneven"


def _draw(played):
    rows = []
    for seen in played.seen:
        row = {}
        for way, _, got, sent in seen.kept:
            row |= {f"{way}: foretold": f"{words(got)} B", f"{way}: counted": f"{sent} B"}
        rows.append(row)
    return holdings_picture(list(rows[0]), rows)


predict_bytes = Task(
    number="03.5",
    name="predict_bytes",
    twice=True,
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="to the byte, of a hub and of a ring, also of 48 ranks",
    draw=_draw,
    hints=(
        "Write down for 4 ranks and 10 numbers what each rank sends: the whole tensor how often, "
        "or which chunks.",
        "Round the hub, rank 0 sends the sum to all others. They send it their tensor, once.",
        "In a half of the ring a rank sends every chunk but one. In the reduce-scatter it is its "
        "own that stays. In the all-gather it is the one that arrives last, and goes nowhere.",
        "lengths = [n // w + (c < n % w) for c in range(w)]; in the ring a rank sends 2 n numbers "
        "less lengths[rank] and lengths[(rank + 1) % w].",
    ),
    mistakes={
        "forbidden": "Foretell it: compute the bytes, and send nothing.",
        "no-number": "Return one number, of bytes.",
        "numbers": "These are numbers of the tensor. Each has several bytes.",
        "together": "This is what all ranks send together. Say it for one rank.",
        "hub-root": "Only rank 0 sends to all others. Each of them sends its tensor once, and one "
        "rank alone sends nothing.",
        "uneven": "Chunks are whole numbers long. Where w does not divide n, the first ones are "
        "one longer. Add up the chunks that this rank really sends.",
        "four-bytes": "A number need not have 4 bytes: take element_bytes.",
        "asked": "You are asked about ranks that do not run. Take rank and world_size from the "
        "arguments.",
        "raised": "Think of lengths that w does not divide, and of one rank alone. Ranks that you "
        "are asked about need not run: take all from the arguments.",
        "one-half": "A ring all-reduce is a reduce-scatter and an all-gather. Count both.",
        "received": "This is what the rank receives. What it sends is what its right neighbour "
        "receives.",
        "second-half": "Not the same chunk stays at home in both halves. Which one arrives last in "
        "the all-gather?",
    },
    allowed=(),
)
