"""
Task 03.5: predict bytes.

On each rank: `_act`, `_asked_again`. In the kernel: the rest.
"""

import torch

from ddp_lessons.checks.kit import Case, Task, words
from ddp_lessons.checks.kit.shared.message_rounds import sending_device
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


def _act(context, predict_bytes):
    numbers = torch.zeros(0, dtype=getattr(torch, context["dtype"]), device=sending_device(context))
    world_size = context.case.data.get("of", context.world_size)
    ranks = range(world_size) if world_size > context.world_size else [context.rank]
    facts = context["num_elements"], numbers.element_size()
    told = [
        [way, rank, context.call(predict_bytes, way, rank, world_size, *facts)]
        for way in _WAYS
        for rank in ranks
    ]
    if world_size > context.world_size:  # too many ranks to run: count without ranks
        counted = {way: sent_bytes("all_reduce", way, world_size, *facts) for way in _WAYS}
        return [(facts, way, rank, got, counted[way][rank]) for way, rank, got in told]
    rows = []
    for way, rank, got in told:
        with trace() as events:
            _WAYS[way].all_reduce(numbers.new_zeros(context["num_elements"]))
        sent = sum(event.input_bytes for event in events if event.is_send)
        rows.append((facts, way, rank, got, sent))
    return [*rows, *_asked_again(context, predict_bytes, *facts)]


def _asked_again(context, predict_bytes, num_elements, element_bytes):
    """
    Call the answer with other arguments, and yield a row for each call.

    The first calls change the number of elements and the bytes of an element. The later calls
    change the bytes only.
    """
    w = context.world_size
    for facts in ((num_elements + 1, 2 * element_bytes), (num_elements, 2 * element_bytes)):
        for way in _WAYS:
            got = context.call(predict_bytes, way, context.rank, w, *facts)
            yield (
                facts,
                way,
                context.rank,
                got,
                sent_bytes("all_reduce", way, w, *facts)[context.rank],
            )


def _judge(case_result):
    w, rows = case_result.case.data.get("of", case_result.case.world_size), []
    for seen in case_result.seen:
        for *question, got, expected in seen.output:
            if isinstance(got, bool) or not isinstance(got, int | float):
                raise case_result.wrong(
                    "no-number", seen.rank, got=got, fact="It must be a number."
                )
            rows.append((*question, got, expected, seen.rank))
    order = list(dict.fromkeys(facts for facts, *_ in rows))
    for facts, way, rank, got, expected, where in sorted(rows, key=lambda r: order.index(r[0])):
        if got == expected:
            continue
        both, (n, size) = {"got": got, "expected": expected}, facts
        fact = f"{way}: rank {rank} of {w} really sends {expected} bytes."
        if facts != order[0]:
            fact = f"{way}, for {n} numbers of {size} bytes: rank {rank} of {w} sends {expected}."
        before = order[: order.index(facts)]
        if any(row[:4] == (other, way, rank, got) for other in before for row in rows):
            fact += " It returned the same number before, for other arguments."
            raise case_result.wrong("kept", where, **both, fact=fact)
        alike = [row[2:5] for row in rows if row[:2] == (facts, way)]
        raise case_result.wrong(
            _name_the_count(case_result, way, facts, alike), where, **both, fact=fact
        )


def _name_the_count(case_result, way, facts, rows):
    """
    Return the mistake that explains the predictions for one way on all ranks of a case.

    Args:
        case_result: The CaseResult.
        way: "hub" or "ring".
        facts: (number of elements, bytes of an element).
        rows: (rank, predicted bytes, bytes that it sends) for each rank that was asked about.
    """
    w, (n, size) = case_result.case.data.get("of", case_result.case.world_size), facts
    length, num_longer = divmod(n, w)
    lengths = [length + (chunk < num_longer) for chunk in range(w)]
    if w > case_result.case.world_size and all(got == rows[0][1] for _, got, _ in rows):
        return "asked"
    for mistake, bytes_of in (
        ("numbers", lambda rank, sent: sent / size),
        ("four-bytes", lambda rank, sent: sent / size * 4),
        ("together", lambda rank, sent: 2 * (w - 1) * n * size if n >= w else None),
        ("one-half", lambda rank, sent: (n - lengths[rank]) * size),
        ("received", lambda rank, sent: (2 * n - lengths[rank - 1] - lengths[rank]) * size),
        ("second-half", lambda rank, sent: 2 * (n - lengths[rank]) * size),
    ):
        if all(got == bytes_of(rank, sent) for rank, got, sent in rows):
            return mistake
    return "hub-root" if way == "hub" else "uneven"


def _draw(case_result):
    rows = []
    for seen in case_result.seen:
        row = {}
        for _, way, _, got, sent in seen.output[: len(_WAYS)]:
            row |= {f"{way}: predicted": f"{words(got)} B", f"{way}: counted": f"{sent} B"}
        rows.append(row)
    return holdings_picture(list(rows[0]), rows)


predict_bytes = Task(
    number="03.5",
    name="predict_bytes",
    twice=True,
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="to the byte, for a hub and a ring, also for 48 ranks",
    draw=_draw,
    hints=(
        "Take 4 ranks and 10 numbers. Write down for each rank how often it sends the whole tensor "
        "(hub), or which chunks it sends (ring).",
        "Through the hub, rank 0 sends the sum to all other ranks. Each of them sends its tensor "
        "once.",
        "In each half of the ring a rank sends every chunk but one. In the reduce-scatter it does "
        "not send its own chunk. In the all-gather it does not send the chunk that arrives last.",
        "lengths = [n // w + (c < n % w) for c in range(w)]; in the ring a rank sends 2 n numbers "
        "less lengths[rank] and lengths[(rank + 1) % w].",
    ),
    mistakes={
        "forbidden": "Compute the bytes, and send nothing.",
        "no-number": "Return one number, of bytes.",
        "numbers": "This is the number of elements that the rank sends. Each element has several "
        "bytes.",
        "together": "This is the sum over all ranks. Return the bytes of one rank.",
        "hub-root": "Only rank 0 sends to all others. Each of them sends its tensor once, and one "
        "rank alone sends nothing.",
        "uneven": "If w does not divide n, the first n % w chunks are one number longer than the "
        "others. Add up the chunks that this rank sends.",
        "four-bytes": "A number does not always have 4 bytes: use element_bytes.",
        "kept": "Compute the bytes anew from all five arguments in each call, and store no result.",
        "asked": "The question may be about ranks that do not run. Take rank and world_size from "
        "the arguments, not from torch.",
        "raised": "Does your function work for one rank, and for lengths that w does not divide? "
        "The question may be about ranks that do not run: take all values from the arguments.",
        "one-half": "A ring all-reduce is a reduce-scatter and an all-gather. Count both.",
        "received": "The rank receives this number of bytes. It sends as many as its right "
        "neighbour receives.",
        "second-half": "The chunk that a rank does not send is another chunk in each half. Which "
        "chunk arrives last in the all-gather?",
    },
    allowed=(),
)
