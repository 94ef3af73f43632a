"""
Exercise 02: what moves when ranks talk.

Legend: n numbers in a tensor, w ranks.
"""

from dataclasses import replace

import torch
import torch.distributed as dist

from ddp_lessons.checks.kit import Case, Task, equal, whole_numbers
from ddp_lessons.pictures import (
    collective_picture,
    steps_picture,
    timeline_picture,
    timeline_tracks,
)
from ddp_lessons.ranks.diagnosis.telling import rank_names
from ddp_lessons.trace import match, merge

# ---- what tasks of 02 and 03 share ----

KEPT = (
    "Make a new tensor in every call. One that is kept for the next call is written over there, "
    "and the caller may still need it."
)
"""
The hint for "kept".
"""


def full_numbers(case, rank, shape, dtype):
    """
    Return numbers that need the digits of their dtype, and that sum exactly over up to 4 ranks.

    Of a dtype with a fraction they are quarters. Another dtype on the way would lose some of them.
    The first case of a task, which has seed 0 and is drawn, gets small whole numbers instead.
    """
    if case.seed == 0:
        return whole_numbers(case, rank, shape, dtype)
    if not dtype.is_floating_point:
        return whole_numbers(case, rank, shape, dtype, torch.iinfo(dtype).max // 4)
    return whole_numbers(case, rank, shape, dtype, int(1 / torch.finfo(dtype).eps) // 2) / 4


def is_nearly(got, total, terms):
    """
    Tell whether a sum is off by lost digits only: by 1 % of the sizes of its terms at most.
    """
    size = sum(term.double().abs() for term in terms)
    return bool(((got.double() - total.double()).abs() <= size / 100).all())


def refuse_lost_digits(played, rank, got, right, terms, mistake="digits"):
    """
    Refuse a tensor that is nearly right, and of the right dtype and shape.

    Args:
        played: The Played.
        rank: The rank that gave it.
        got: What it gave.
        right: What is right.
        terms: The tensors that it is the sum of.
        mistake: The mistake's name.
    """
    if not isinstance(got, torch.Tensor) or (got.dtype, got.shape) != (right.dtype, right.shape):
        return
    if not bool((got == right).all()) and is_nearly(got, right, terms):
        off = (got.double() - right.double()).abs().max()
        fact = f"It is nearly right: no number is off by more than {off:.3g}. Digits are lost."
        raise played.wrong(mistake, rank, got=got, expected=right, fact=fact)


def call(here, answer, arguments_of):
    """
    Call an answer; if the case has `calls` 2, with other numbers before that.

    What it has noted of those, such as a sum under a shape, must not come back.

    Args:
        here: What the rank knows.
        answer: What the learner has defined.
        arguments_of: Function of a Case that returns its arguments.
    """
    if here.case.data.get("calls") == 2:
        here.call(answer, *arguments_of(replace(here.case, seed=here.case.seed + 1)))
        here.calls.clear()
    here.call(answer, *arguments_of(here.case))


# ---- 02.1 all-reduce from reduce and broadcast ----


def _cases(draw):
    yield Case(4, {"shape": [3], "dtype": "float32"}, seed=0)
    for world_size in (1, 2, 3, 4):
        yield Case(world_size, {"shape": [draw.randint(5, 40)], "dtype": "float64"})
    yield Case(3, {"shape": [draw.randint(2, 5), 3], "dtype": "int64"})
    yield Case(2, {"shape": [], "dtype": "float32"})
    yield Case(3, {"shape": [0, 2], "dtype": "float64"})
    yield Case(2, {"shape": [draw.randint(5, 9)], "dtype": "float32", "calls": 2})


def _tensor(case, rank):
    return full_numbers(case, rank, case["shape"], getattr(torch, case["dtype"]))


def _act(here, all_reduce):
    call(here, all_reduce, lambda case: [_tensor(case, here.rank).to(here.device)])


def _judge(played):
    tensors, num_ranks = played.before, played.case.world_size
    total = sum(tensors)
    for rank, got in enumerate(played.results):
        is_like = isinstance(got, torch.Tensor) and got.dtype == total.dtype
        if is_like and got.shape == total.shape and num_ranks > 1:
            _name_the_mistake(played, rank, got, tensors, total)
        refuse_lost_digits(played, rank, got, total, tensors)
        played.expect(rank, got, total)
    for rank, names in enumerate(played.names):
        if len(names) > 2:
            fact = f"The sum is right, but it took {len(names)} collectives; 2 are enough."
            raise played.wrong("cost", rank, fact=fact)


def _name_the_mistake(played, rank, got, tensors, total):
    if torch.equal(got, total):
        return
    both = {"got": got, "expected": total}
    lucky = [r for r, other in enumerate(played.results) if equal(other, total)]
    if lucky or torch.equal(got, tensors[rank]):
        which = f"only on {rank_names(lucky)}" if lucky else "nowhere"
        raise played.wrong("not-everywhere", rank, **both, fact=f"The sum is {which}.")
    if any(torch.equal(got, tensor) for tensor in tensors):
        fact = "This rank has the tensor of one rank, not the sum."
        raise played.wrong("no-sum", rank, **both, fact=fact)
    if any(torch.equal(got, len(tensors) * tensor) for tensor in tensors):
        fact = "This rank has one rank's tensor, w times."
        raise played.wrong("wrong-order", rank, **both, fact=fact)


def _draw(played):
    rows = ([tensor.tolist() for tensor in each] for each in (played.before, played.results))
    before, after = ([[int(number) for number in row] for row in each] for each in rows)
    return collective_picture("all_reduce", before, after)


all_reduce = Task(
    number="02.1",
    name="all_reduce",
    twice=True,
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="2 collectives a rank",
    draw=_draw,
    hints=(
        "One call brings all tensors together on one rank. Another brings one tensor to all.",
        "reduce leaves the sum on rank dst alone. Who has to send it on, and by which call?",
        "Both calls write into the tensor that they get, so give them a copy of your argument.",
        "total = tensor.clone(); then dist.reduce(total, dst=0); the rest is one call more.",
    ),
    mistakes={
        "forbidden": "Use reduce and broadcast, and nothing else of torch.distributed that sends.",
        "not-everywhere": "After reduce, only one rank has the sum. The others must get it too.",
        "no-sum": "Send the sum from the rank that has it: reduce's dst is broadcast's src.",
        "wrong-order": "First add, then send: the other way round adds w copies of one tensor.",
        "digits": "Add and send in the dtype of the tensor: another one may not hold its numbers.",
        "kept": KEPT,
        "raised": "A line that is named is yours. Think of one rank alone, and of tensors of one "
        "number, or of none.",
        "cost": "One reduce, to any rank, and one broadcast from there.",
        "deadlock": "Every rank makes both calls, also the one that has the sum already.",
    },
    allowed=("reduce", "broadcast"),
)

# ---- 02.2 all-gather of unequal lengths ----

_NUMBER_BYTES = 8


def _gather_cases(draw):
    yield Case(4, {"lengths": [2, 3, 1, 2], "dtype": "float32"}, seed=0)
    yield Case(1, {"lengths": [draw.randint(1, 9)], "dtype": "float64"})
    # 8 bits of a mantissa hold no such length: it becomes one more.
    lengths = [draw.randint(1, 9), 4 * draw.randint(65, 90) + 3]
    yield Case(2, {"lengths": lengths, "dtype": "bfloat16"})
    lengths = [0, draw.randint(1, 20), draw.randint(21, 40)]
    yield Case(3, {"lengths": draw.sample(lengths, 3), "dtype": "float64"})
    lengths = [*(draw.randint(5, 9) for _ in range(3)), draw.randint(10, 50)]
    yield Case(4, {"lengths": lengths, "dtype": "int64", "calls": 2})
    # Nor do the 11 bits of float16 hold this one.
    lengths = [draw.randint(1, 9), 2048 + 4 * draw.randint(1, 99) + 3]
    yield Case(2, {"lengths": lengths, "dtype": "float64"})
    yield Case(2, {"lengths": [0, 0], "dtype": "float32"})


def _gather_act(here, all_gather_unequal):
    if here.case.seed == 0:  # equal lengths first: Gloo may abort the process if lengths differ
        here.call(all_gather_unequal, _numbers_of_length(here, here.case, 2))
        if here.world_size > 1 and len(here.calls[0].events) < 2:
            return  # it cannot know any length but its own
        here.calls.clear()
    length = here["lengths"][here.rank]
    call(here, all_gather_unequal, lambda case: [_numbers_of_length(here, case, length)])


def _numbers_of_length(here, case, length):
    numbers = full_numbers(case, here.rank, [length], getattr(torch, case["dtype"]))
    numbers[-1:] = 0  # a last number like any other, which looks like padding
    return numbers.to(_sending_device(here))


def _sending_device(here):
    # Gloo sends messages from the CPU's memory, NCCL from the GPU's.
    return here.device if dist.get_backend() == "nccl" else torch.device("cpu")


def _gather_judge(played):
    tensors = played.before
    for rank, got in enumerate(played.results):
        if not isinstance(got, list | tuple) or len(got) != len(tensors):
            fact = f"It must return a list of {len(tensors)} tensors."
            raise played.wrong("no-list", rank, got=got, fact=fact)
    _name_the_length(played, tensors)
    for rank, got in enumerate(played.results):
        _name_the_order(played, rank, got, tensors)
        for part, expected in zip(got, tensors, strict=True):
            refuse_lost_digits(played, rank, part, expected, [expected])
            played.expect(rank, part, expected)
    longest = max(tensor.nbytes for tensor in tensors)
    if len(tensors) > 1 and longest and len(played.names[0]) < 2:
        fact = "It makes one collective only. It takes two: for the lengths, and for the tensors."
        raise played.wrong("no-lengths", 0, fact=fact)
    most_bytes, dtype = _NUMBER_BYTES + longest, played.case["dtype"]
    for rank, events in enumerate(played.traces):
        moved = [event for event in events if event.is_communication]
        if len(moved) > 2:
            fact = f"The tensors are right, but it took {len(moved)} collectives; 2 are enough."
            raise played.wrong("cost", rank, fact=fact)
        num_bytes = sum(event.input_bytes for event in moved)
        if num_bytes > most_bytes:
            sent = moved[-1].dtype
            fact = f"{num_bytes} bytes went into its calls, the last {moved[-1].input_bytes} as "
            fact += f"{sent}; {most_bytes} are enough."
            other = "objects" if sent == "uint8" else "wide-dtype"
            raise played.wrong("too-wide" if sent == dtype else other, rank, fact=fact)


def _name_the_length(played, tensors):
    expected = [len(tensor) for tensor in tensors]
    shapes = [[list(getattr(part, "shape", ())) for part in got] for got in played.results]
    for mistake, fact, lengths_on in (
        ("padding", "All parts are equally long.", lambda rank: [max(expected)] * len(expected)),
        ("own-length", "Each rank cut all parts to its own length.",
         lambda rank: [len(tensors[rank])] * len(expected)),
        *(("length-dtype", "A length was rounded on its way.",
           lambda rank, dtype=dtype: [int(torch.tensor(n, dtype=dtype)) for n in expected])
          for dtype in (tensors[0].dtype, torch.float16, torch.bfloat16)),
        ("zeros", "Zeros of the tensors are gone.",
         lambda rank: [int(tensor.count_nonzero()) for tensor in tensors]),
    ):  # fmt: skip
        cut = [[[n] for n in lengths_on(rank)] for rank in range(len(expected))]
        if shapes == cut != [[[n] for n in expected]] * len(expected):
            rank = next(r for r, row in enumerate(cut) if row != [[n] for n in expected])
            lengths = {"got": [n for (n,) in cut[rank]], "expected": expected}
            raise played.wrong(mistake, rank, **lengths, fact=f"{fact} These are the lengths.")


def _name_the_order(played, rank, got, tensors):
    ranks = list(range(len(tensors)))
    places = [next((r for r in ranks if equal(part, tensors[r])), None) for part in got]
    if places != ranks == sorted(places, key=lambda place: -1 if place is None else place):
        fact = "All tensors are there, in another order. These are the ranks that they are from."
        raise played.wrong("order", rank, got=places, expected=ranks, fact=fact)


def _gather_draw(played):
    before = [[int(number) for number in tensor] for tensor in played.before]
    after = [[int(number) for part in got for number in part] for got in played.results]
    return collective_picture("all_gather_unequal", before, after)


_IN_ITS_DTYPE = "Send the tensor in its own dtype: another one may not hold its numbers."
_ONE_LENGTH = (
    "In one all_gather, the tensors of all ranks have the same length. Find out the lengths first, "
    "and make them equal."
)
_ALIKE = (
    "In one all_gather, what ranks give has the same length and the same dtype on all of them, a "
    "tensor of lengths too"
)

all_gather_unequal = Task(
    number="02.2",
    name="all_gather_unequal",
    twice=True,
    cases=_gather_cases,
    act=_gather_act,
    judge=_gather_judge,
    ok="2 collectives a rank, at most 8 bytes more than the longest tensor",
    draw=_gather_draw,
    hints=(
        "all_gather wants tensors of one length. So they must be made equally long, and cut again.",
        "To cut them, every rank needs all lengths. A length is a number, and numbers can be "
        "gathered.",
        "Gather the lengths as int64. Fill up each tensor to the greatest one, and gather that.",
        "padded = tensor.new_zeros(longest); padded[: len(tensor)] = tensor; then all_gather it, "
        "and cut part r to lengths[r].",
    ),
    mistakes={
        "no-lengths": _ONE_LENGTH,
        "no-list": "Return a list with one tensor for each rank, in rank order.",
        "padding": "Cut off what was filled up: part r is as long as rank r's tensor was.",
        "own-length": "Each rank has a length of its own: cut part r to rank r's.",
        "length-dtype": "Send lengths as int64. The dtype of the tensor may not hold them.",
        "zeros": "A zero may be one of the numbers. Send lengths, and cut by them.",
        "digits": _IN_ITS_DTYPE,
        "order": "Part r is rank r's tensor: all_gather keeps the order of the ranks.",
        "objects": "Send the numbers, and nothing else. A pickled object is longer than its "
        "numbers: gather tensors.",
        "kept": KEPT,
        "cost": "Gather the lengths once, and the tensors once.",
        "too-wide": "Fill up to the longest tensor that there is, and not further.",
        "wide-dtype": "Fill up in the dtype of the tensor: tensor.new_zeros makes such zeros.",
        "forbidden": "Use all_gather or all_gather_into_tensor, and nothing else that sends.",
        "died": f"{_ALIKE}: fill up what is shorter. Where bytes do not fit, torch ends a process.",
        "raised": f"Think of other dtypes and of an empty tensor. {_ALIKE}; the places that it is "
        "gathered into are like it.",
    },
    allowed=("all_gather", "all_gather_into_tensor"),
)

# ---- 02.3 a neighbour exchange that cannot deadlock ----


def _exchange_cases(draw):
    yield Case(4, {"shape": [3], "dtype": "float32"}, seed=0)
    for world_size in (1, 2, 3):
        yield Case(world_size, {"shape": [draw.randint(8, 40)], "dtype": "float64"})
    yield Case(4, {"shape": [draw.randint(2, 5), 3], "dtype": "int64"})
    yield Case(4, {"shape": [2**17 + draw.randint(0, 99)], "dtype": "float32"})
    yield Case(3, {"shape": [0], "dtype": "float32"})
    yield Case(3, {"shape": [draw.randint(5, 9)], "dtype": "float64", "calls": 2})
    for world_size in (6, 9):  # who goes by the numbers of 4 ranks leaves others waiting here
        yield Case(world_size, {"shape": [2], "dtype": "float64"}, on_paper=True)


def _exchange_act(here, exchange):
    device = _sending_device(here)
    call(here, exchange, lambda case: [_tensor(case, here.rank).to(device)])


def _exchange_judge(played):
    tensors, w = played.before, played.case.world_size
    for rank, got in enumerate(played.results):
        both = {"got": got, "expected": tensors[rank - 1]}
        if got is not None and not equal(got, tensors[rank - 1]):
            if equal(got, tensors[rank]):
                raise played.wrong("own", rank, **both, fact="This rank has its own tensor.")
            if equal(got, tensors[(rank + 1) % w]):
                fact = "This rank has the tensor of its right neighbour."
                raise played.wrong("direction", rank, **both, fact=fact)
        refuse_lost_digits(played, rank, got, tensors[rank - 1], [tensors[rank - 1]])
        played.expect(rank, got, tensors[rank - 1])
    most = 1 if w > 1 else 0
    for rank, names in enumerate(played.names):
        num_sent = names.count("send")
        if num_sent > most:
            fact = f"What came is right, but it sends {num_sent} messages; {most} is enough."
            raise played.wrong("cost", rank, fact=fact)
    most = rounds_in_turns(w)
    for rank, rounds in enumerate(rounds_of_sends(played.traces)):
        if max(rounds, default=0) > most:
            fact = (
                f"Its message can only move in round {max(rounds)}, as it waits for others before "
                f"it; {most} rounds are enough."
            )
            raise played.wrong("turns", rank, fact=fact)


def rounds_in_turns(world_size):
    """
    Return how many rounds it takes if each rank gives its neighbour a message, and waits for it.

    Even ranks send first, odd ones receive first. An odd circle has two even ranks side by side.
    """
    return 2 + world_size % 2


def rounds_of_sends(traces):
    """
    Return for each rank in which round each of its messages moves, counted from 1.

    A message moves when both sides have made their call. A rank makes a call when all messages have
    moved that it waited for before it, sent and received ones. It sends one message a round.

    Args:
        traces: One list of events a rank. Every message in it arrived.
    """
    sides = {}
    for met in match(traces):
        both = list(met.values())
        if any(event.is_send for event in both) and any(event.is_receive for event in both):
            sides.update({(event.rank, event.index): both for event in both})
    known: dict = {}

    def round_of(event):
        both = sides.get((event.rank, event.index), [event])
        key = min((side.rank, side.index) for side in both)
        if key not in known:
            known[key] = 0  # of messages that wait for each other: a backend had buffered them
            before = [earlier for side in both for earlier in _moved_before(side, traces)]
            known[key] = 1 + max(map(round_of, before), default=0)
        return known[key]

    return [[round_of(event) for event in events if event.is_send] for events in traces]


def _moved_before(side, traces):
    for event in traces[side.rank]:
        if event.thread != side.thread:
            continue
        is_waited_for = event.wait_index is not None and event.wait_index < side.index
        is_earlier_send = event.is_send and side.is_send and event.index < side.index
        if (event.is_send or event.is_receive) and (is_waited_for or is_earlier_send):
            yield event


def _exchange_draw(played):
    return timeline_picture(timeline_tracks(merge(played.traces)), "events, in order")


_MUST_FIT = (
    "A message and the tensor that it is received into must have the same shape and dtype. Where "
    "more bytes come than it has room for, torch ends a process."
)
_IN_A_CIRCLE = (
    "Ranks stand in a circle: to the right of the last one is rank 0. One rank alone is its own "
    "neighbour, and a message cannot go to oneself."
)

exchange = Task(
    number="02.3",
    name="exchange",
    twice=True,
    cases=_exchange_cases,
    act=_exchange_act,
    judge=_exchange_judge,
    ok="1 message a rank, and no long wait for a turn",
    draw=_exchange_draw,
    hints=(
        "A send waits until the other side receives. If all wait in a send, nobody receives.",
        "Start one of the two calls without waiting for it, make the other, and wait then.",
        "dist.isend and dist.irecv return a handle at once. The tensor is the call's until "
        "handle.wait() has returned.",
        "handle = dist.irecv(arrived, src=left) comes first; send, wait and return are left.",
    ),
    mistakes={
        "deadlock": "If every rank first waits in the same call, no rank makes the other call. "
        "Start one of them without waiting for it.",
        "unwaited": "isend and irecv return at once. Keep the handle, and wait for it before you "
        "return.",
        "direction": "Send to the right, and receive from the left: rank r takes rank r - 1's.",
        "own": "Only a rank that is alone keeps its own. Receive into a new tensor, wait until it "
        "is there, and return that one.",
        "died": _MUST_FIT,
        "input-changed": "Receive into a tensor of its own: torch.empty_like(tensor).",
        "digits": _IN_ITS_DTYPE,
        "turns": "All can send at the same time: isend and irecv start without waiting.",
        "kept": KEPT,
        "cost": "Send the whole tensor in one message. How large it is does not matter.",
        "forbidden": "Use send, recv, isend and irecv: each tensor goes to one rank only.",
        "raised": _IN_A_CIRCLE + " A tensor may have 0 numbers: then recv must be told its src.",
    },
    allowed=("send", "recv"),
)

# ---- 02.4 a broadcast in log2(w) rounds ----


def _broadcast_cases(draw):
    yield Case(4, {"src": 0, "shape": [2], "dtype": "float32"}, seed=0)
    for world_size in (1, 2, 3, 4):
        data = {"src": world_size - 1, "shape": [draw.randint(8, 40)], "dtype": "float64"}
        yield Case(world_size, data)
    yield Case(3, {"src": 0, "shape": [draw.randint(2, 5), 3], "dtype": "int64"})
    yield Case(4, {"src": draw.randint(1, 2), "shape": [], "dtype": "float32"})
    yield Case(3, {"src": draw.randint(0, 2), "shape": [0], "dtype": "float64"})
    yield Case(4, {"src": draw.randint(0, 3), "shape": [9], "dtype": "float64", "calls": 2})
    # From 7 ranks on a heap, two for each, takes a round more than it need.
    for world_size in range(5, 17):
        data = {"src": draw.randrange(world_size), "shape": [3], "dtype": "float64"}
        yield Case(world_size, data, on_paper=True)


def _broadcast_act(here, broadcast):
    device = _sending_device(here)
    call(here, broadcast, lambda case: [_tensor(case, here.rank).to(device), here["src"]])


def _broadcast_judge(played):
    tensors, src = played.before, played.case["src"]
    others = [tensor for rank, tensor in enumerate(tensors) if rank != src]
    for rank, got in enumerate(played.results):
        both = {"got": got, "expected": tensors[src]}
        is_old = equal(got, tensors[rank]) or equal(got, tensors[src])  # small ones may be alike
        if not is_old and any(equal(got, other) for other in others):
            fact = f"This rank has the tensor of another rank than {src}."
            raise played.wrong("other-root", rank, **both, fact=fact)
    for rank, got in enumerate(played.results):
        both = {"got": got, "expected": tensors[src]}
        if equal(got, tensors[rank]) and not equal(got, tensors[src]):
            fact = "This rank still has its own tensor."
            raise played.wrong("not-everywhere", rank, **both, fact=fact)
        refuse_lost_digits(played, rank, got, tensors[src], [tensors[src]])
        played.expect(rank, got, tensors[src])
    num_sent, w = [names.count("send") for names in played.names], len(tensors)
    if sum(num_sent) > w - 1:
        fact = f"All have it, but it took {sum(num_sent)} messages; {w - 1} are enough."
        raise played.wrong("cost", fact=fact)
    most = (w - 1).bit_length()
    for rank, rounds in enumerate(rounds_of_sends(played.traces)):
        if max(rounds, default=0) > most:
            mistake = "one-sender" if num_sent[rank] == w - 1 else "chain"
            fact = f"It sends in round {max(rounds)}; {most} rounds are enough."
            raise played.wrong(mistake, rank, fact=fact)


def _broadcast_draw(played):
    w, src = played.case.world_size, played.case["src"]
    rounds_of = rounds_of_sends(played.traces)
    moves = [[] for _ in range(max((max(rounds, default=0) for rounds in rounds_of), default=0))]
    for events, rounds in zip(played.traces, rounds_of, strict=True):
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
    cases=_broadcast_cases,
    act=_broadcast_act,
    judge=_broadcast_judge,
    ok="w - 1 messages in log2(w) rounds, rounded up",
    draw=_broadcast_draw,
    hints=(
        "A rank that has the tensor can pass it on. So the number of ranks that have it can double "
        "in each round: 1, 2, 4.",
        "Number the ranks from src: place = (rank - src) % world_size. Before the round with "
        "distance d, places 0 to d - 1 have the tensor.",
        "In the round with distance d, place p below d sends to place p + d, if there is one. "
        "Places from d to 2d - 1 receive.",
        "if place < d and place + d < world_size: send to rank (rank + d) % world_size; elif "
        "d <= place < 2 * d: receive from (rank - d) % world_size.",
    ),
    mistakes={
        "one-sender": "A rank that has it can send it too, in the same round as src.",
        "chain": "Let every rank that has it send in every round, until all have it.",
        "digits": _IN_ITS_DTYPE,
        "kept": KEPT,
        "cost": "Each rank but src receives once; who has it already needs no message.",
        "other-root": "The tensor is rank src's, and src is not always 0: count places from src. "
        "And a rank can pass on what it receives when it has waited for it.",
        "not-everywhere": "Go through the rounds for this number of ranks: who sends to those that "
        "have nothing?",
        "input-changed": "Leave the argument as it is: got = tensor.clone() comes first.",
        "view": "Leave the argument as it is, and return a copy: got = tensor.clone() comes first.",
        "deadlock": "For each round write down who sends to whom. A send needs a receive in the "
        "same round, from the rank that sends.",
        "raised": "In the last round some ranks have no partner: with 3 ranks there is no rank 3. "
        "And a tensor may have 0 numbers: then recv must be told its src.",
        "died": _MUST_FIT,
        "forbidden": "Use send and recv only: the rounds are yours to plan.",
    },
    allowed=("send", "recv"),
)
