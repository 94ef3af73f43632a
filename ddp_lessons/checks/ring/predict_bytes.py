"""
Exercise 03: a ring, and what it costs.

Legend: w ranks; n numbers of a tensor, cut into w chunks. In a ring to the right rank r sends to
rank r + 1 only; to the left, to rank r - 1 only.
"""

from dataclasses import replace
from itertools import product
from math import isfinite, sqrt
from random import Random

import numpy as np
import torch
import torch.distributed as dist

from ddp_lessons.checks.collectives import (
    KEPT,
    call,
    full_numbers,
    is_nearly,
    refuse_lost_digits,
    rounds_in_turns,
    rounds_of_sends,
)
from ddp_lessons.checks.kit import Case, Task, equal, normal_numbers, sum_error, words
from ddp_lessons.checks.kit.early import Early
from ddp_lessons.collectives import naive
from ddp_lessons.costs import sent_bytes
from ddp_lessons.errors import WrongAnswer
from ddp_lessons.pictures import (
    holdings_picture,
    steps_picture,
    timeline_picture,
    timeline_tracks,
)
from ddp_lessons.ranks.diagnosis.telling import rank_names
from ddp_lessons.ring import textbook
from ddp_lessons.trace import merge, trace

# ---- what the three rings share ----

_RING_MISTAKES = {
    "forbidden": "Use send, recv, isend and irecv: the ring is yours to make.",
    "not-ring": "Let each rank send to one neighbour only, and receive from the other.",
    "turns": "Let all ranks send in the same step: isend or irecv starts without waiting.",
    "early": "What irecv brings is there when the wait for it has returned, and not before. Until "
    "then do not read it, add to it or pass it on.",
    "kept": KEPT,
    "sent-dtype": "Send, and add, in the dtype that you were given.",
    "deadlock": "If every rank first waits in the same call, no rank makes the other one. Start "
    "one of the two without waiting for it.",
}


def _sending_device(here):
    # Gloo sends messages from the CPU's memory, NCCL from the GPU's.
    return here.device if dist.get_backend() == "nccl" else torch.device("cpu")


def _call(here, answer, arguments_of):
    """
    Call an answer, and return the name of what in it takes a message too early, if anything does.
    """
    with Early() as early:
        call(here, answer, arguments_of)
    return early.taken_by


def _refuse_early(played):
    for seen in played.seen:
        if seen.kept is not None:
            fact = f"Its {seen.kept} takes a tensor that is still being received."
            raise played.wrong("early", seen.rank, fact=fact)


def _judge_ring(played, num_steps, most_bytes):
    """
    Refuse a ring that costs too much.

    Args:
        played: The Played. All its results are right.
        num_steps: How many messages a rank may send.
        most_bytes: For each rank how many bytes all of them may have.
    """
    for rank, events in enumerate(played.traces):
        sends = [event for event in events if event.is_send]
        peers = sorted({send.peer for send in sends})
        if len(peers) > 1:
            fact = f"It sends to {rank_names(peers)}. In a ring a rank sends to one other only."
            raise played.wrong("not-ring", rank, fact=fact)
        num_bytes = sum(send.input_bytes for send in sends)
        if len(sends) > num_steps or num_bytes > most_bytes[rank]:
            fact = (
                f"It sends {num_bytes} bytes in {len(sends)} messages; {most_bytes[rank]} bytes "
                f"in {num_steps} are enough."
            )
            mistake = "cost" if len(sends) > num_steps else "filled-up"
            raise played.wrong(_unless_of_dtype(played, sends, mistake), rank, fact=fact)
    most = num_steps * rounds_in_turns(played.case.world_size)
    for rank, rounds in enumerate(rounds_of_sends(played.traces)):
        if max(rounds, default=0) > most:
            fact = (
                f"Its last message can only move in round {max(rounds)}, as it waits for others "
                f"before it; {most} rounds are enough for {num_steps} steps."
            )
            raise played.wrong("turns", rank, fact=fact)


def _unless_of_dtype(played, sends, mistake):
    """
    Return the name of a mistake, or that what was sent too much of has another dtype.
    """
    return "sent-dtype" if {send.dtype for send in sends} - {played.case["dtype"]} else mistake


def _refuse_long_messages(played, chunk_bytes, tensor_bytes):
    for rank, events in enumerate(played.traces):
        longest = max(
            (event for event in events if event.is_send),
            key=lambda event: event.input_bytes,
            default=None,
        )
        if longest is not None and longest.input_bytes > chunk_bytes:
            fact = (
                f"It sends {longest.input_bytes} bytes in one message, as {longest.dtype}; the "
                f"longest chunk has {chunk_bytes}."
            )
            mistake = "whole-tensor" if longest.input_bytes == tensor_bytes else "too-long"
            raise played.wrong(_unless_of_dtype(played, [longest], mistake), rank, fact=fact)


def _draw_ring(played, phases):
    """
    Draw the chunks of a ring step by step; where it is no right ring yet, its messages.

    Args:
        played: The Played. Its chunks are equally long.
        phases: "grow" for a reduce-scatter, "copy" for an all-gather, in order.
    """
    w = played.case.world_size
    sends = [[event for event in events if event.is_send] for events in played.traces]
    try:
        played.task.judge(played)
        is_right = {len(own) for own in sends} == {len(phases) * (w - 1)}
    except WrongAnswer:
        is_right = False
    if not is_right:
        return timeline_picture(timeline_tracks(merge(played.traces)), "events, in order")
    ahead = 1 if sends[0][0].peer == 1 else -1
    start = [
        [[rank] if phases[0] == "grow" or chunk == rank else [] for chunk in range(w)]
        for rank in range(w)
    ]
    held, moves = [start], []
    for phase in phases:
        for step in range(w - 1):
            # A chunk that grows comes home in the last step; one that is copied leaves home first.
            away = w - 1 - step if phase == "grow" else -step
            steps = [(r, (r + ahead) % w, (r + ahead * away) % w) for r in range(w)]
            now = [list(row) for row in held[-1]]
            for sender, receiver, chunk in steps:
                own = held[-1][receiver][chunk] if phase == "grow" else []
                now[receiver][chunk] = sorted({*held[-1][sender][chunk], *own})
            held.append(now)
            moves.append([(sender, receiver, [chunk]) for sender, receiver, chunk in steps])
    return steps_picture(held, moves)


# ---- 03.1 ring reduce-scatter ----


def _cases(draw):
    yield Case(4, {"lengths": [4, 4, 4, 4], "dtype": "float32"}, seed=0)
    # Rank 2 gets a chunk first that is longer than its own.
    longer = draw.randint(6, 9)
    yield Case(3, {"lengths": [longer, draw.randint(3, 5), 2], "dtype": "float64"})
    yield Case(1, {"lengths": [draw.randint(1, 9)], "dtype": "float32"})
    yield Case(2, {"lengths": [draw.randint(3, 9), draw.randint(0, 2)], "dtype": "int64"})
    # Of two ranks: with more, int64 that is sent for int32 would end the processes.
    yield Case(2, {"lengths": [draw.randint(3, 9), draw.randint(3, 9)], "dtype": "int32"})
    lengths = [0, *(draw.randint(1, 9) for _ in range(3))]
    yield Case(4, {"lengths": draw.sample(lengths, 4), "dtype": "bfloat16"})
    lengths = [draw.randint(5, 9) for _ in range(3)]
    yield Case(3, {"lengths": lengths, "dtype": "float32", "calls": 2})


def _chunks(case, rank):
    numbers = full_numbers(case, rank, [sum(case["lengths"])], getattr(torch, case["dtype"]))
    return [chunk.clone() for chunk in numbers.split(case["lengths"])]


def _scatter_act(here, reduce_scatter):
    device = _sending_device(here)
    return _call(
        here,
        reduce_scatter,
        lambda case: [[chunk.to(device) for chunk in _chunks(case, here.rank)]],
    )


def _scatter_judge(played):
    _refuse_early(played)
    w = played.case.world_size
    chunks = list(zip(*played.before, strict=True))  # [chunk][rank]
    for rank, got in enumerate(played.results):
        if isinstance(got, torch.Tensor) and got.dtype == chunks[0][0].dtype:
            _name_the_sum(played, rank, got, chunks)
        played.expect(rank, got, sum(chunks[rank]))
    own_bytes = [parts[0].nbytes for parts in chunks]
    _refuse_long_messages(played, max(own_bytes), sum(own_bytes))
    _judge_ring(played, w - 1, [sum(own_bytes) - own for own in own_bytes])


def _name_the_sum(played, rank, got, chunks):
    both = {"got": got, "expected": sum(chunks[rank])}
    if equal(got, both["expected"]):
        return
    others = [c for c in range(len(chunks)) if c != rank and equal(got, sum(chunks[c]))]
    if others:
        fact = f"This is the sum of chunk {others[0]}, not of chunk {rank}."
        raise played.wrong("wrong-chunk", rank, **both, fact=fact)
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
    cases=_cases,
    act=_scatter_act,
    judge=_scatter_judge,
    ok="w - 1 messages a rank, every chunk but its own",
    draw=lambda played: _draw_ring(played, ["grow"]),
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
    mistakes=_RING_MISTAKES
    | {
        "whole-tensor": "Only one chunk travels in a step. The others wait for their turn.",
        "wrong-chunk": "Ask where a chunk must start to end at home: w - 1 steps are one less "
        "than once round.",
        "not-all": "Pass on the sum of what came and your own numbers, not one of them alone.",
        "twice": "Each rank adds its numbers to a chunk once: also where a chunk starts, and where "
        "it ends.",
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

# ---- 03.2 ring all-gather ----


def _gather_act(here, all_gather):
    device = _sending_device(here)
    return _call(
        here,
        all_gather,
        lambda case: [_chunks(case, here.rank)[here.rank].to(device), list(case["lengths"])],
    )


def _gather_judge(played):
    _refuse_early(played)
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
    _judge_ring(played, w - 1, [most] * w)


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
    cases=_cases,
    act=_gather_act,
    judge=_gather_judge,
    ok="w - 1 messages a rank, each one chunk",
    draw=lambda played: _draw_ring(played, ["copy"]),
    hints=(
        "Each chunk goes once round the circle. Who gets it keeps it, and passes it on.",
        "In the first step rank r sends its own chunk, and chunk r - 1 arrives from the left. In "
        "the next step it sends that one.",
        "So in step s chunk r - s leaves rank r, and chunk r - s - 1 arrives.",
        "parts = [chunk.new_empty(n) for n in lengths]; parts[rank] gets the chunk; in step s send "
        "parts[(rank - s) % world_size] and receive into parts[(rank - s - 1) % world_size].",
    ),
    mistakes=_RING_MISTAKES
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

# ---- 03.3 ring all-reduce for any length ----


def _reduce_cases(draw):
    def case(world_size, shape, dtype, numbers="whole", **more):
        return Case(world_size, {"shape": shape, "dtype": dtype, "numbers": numbers} | more)

    yield replace(case(4, [8], "float32"), seed=0)
    yield case(4, [4 * draw.randint(2, 5) + 3], "int64")
    yield case(3, [2], "float32")
    yield case(3, [3 * draw.randint(2, 5) + 2], "int64")
    yield case(4, [0, 3], "int64")
    yield case(3, [3 * draw.randint(2, 5) + 1], "bfloat16", calls=2)
    yield case(2, [2 * draw.randint(2, 5) + 1], "int32")
    yield case(3, [draw.randint(3, 5), 7], "float32", "transposed")
    yield case(2, [draw.randint(3, 5), 5], "float32", "expanded")
    yield case(1, [draw.randint(1, 9)], "float64", "normal")
    yield case(2, [], "float64", "normal")
    # Chunks that no system buffer holds.
    yield case(4, [2**18 + 4 * draw.randint(0, 99) + 1], "float32", "normal")


def _reduce_act(here, all_reduce):
    device = _sending_device(here)
    return _call(here, all_reduce, lambda case: [_numbers(case, here.rank).to(device)])


def _numbers(case, rank):
    draw = full_numbers if case["numbers"] == "whole" else normal_numbers
    numbers = draw(case, rank, case["shape"], getattr(torch, case["dtype"]))
    if case["numbers"] == "transposed":
        return numbers.T
    return numbers[:, :1].expand(case["shape"]) if case["numbers"] == "expanded" else numbers


def _reduce_judge(played):
    _refuse_early(played)
    tensors, results, w = played.before, played.results, played.case.world_size
    kind = played.case["numbers"]
    exact = sum(tensors)
    if exact.is_floating_point():
        exact = sum(tensor.double() for tensor in tensors).to(exact.dtype)
    longest = -(-exact.numel() // w)
    # First what is wrong altogether, then what it costs, and its last digits at the end.
    far = sum(tensor.double().abs() for tensor in tensors) / 100
    for rank, got in enumerate(results):
        if kind == "whole" and isinstance(got, torch.Tensor):
            _name_the_part(played, rank, got, exact)
        mistake = "values"
        if kind in ("transposed", "expanded"):
            mistake = "memory" if _is_in_other_order(got, exact, far) else "copied"
        played.expect(rank, got, exact, far, mistake=mistake)
    _refuse_long_messages(played, longest * exact.element_size(), exact.nbytes)
    for rank, got in enumerate(results):
        if not equal(got, results[0]):
            both = {"got": got, "expected": results[0]}
            fact = "Its bits are not those of rank 0's sum."
            raise played.wrong("bits", rank, **both, fact=fact)
    for rank, got in enumerate(results):
        if kind == "whole":
            refuse_lost_digits(played, rank, got, exact, tensors)
        else:
            most_off = sum_error(tensors) + _rounding(exact)
            played.expect(rank, got, exact, most_off, mistake="digits")
    num_steps = 2 * (w - 1)
    _judge_ring(played, num_steps, [num_steps * longest * exact.element_size()] * w)


def _is_in_other_order(got, exact, far):
    if not isinstance(got, torch.Tensor) or got.shape != exact.shape:
        return False
    both = (tensor.flatten().double().sort().values for tensor in (got, exact))
    return bool((next(both) - next(both)).abs().max() <= far.max())


def _rounding(exact):
    # `exact` was rounded to the dtype of the answer.
    return exact.double().abs() * torch.finfo(exact.dtype).eps / 2


def _name_the_part(played, rank, got, exact):
    w, both = played.case.world_size, {"got": got, "expected": exact}
    if got.shape != exact.shape or got.dtype != exact.dtype:
        return
    if is_nearly(got, exact, played.before):
        return
    if w > 1 and got.is_floating_point() and equal(got, exact / w):
        raise played.wrong("average", rank, **both, fact="This is the mean, not the sum.")
    num_over = exact.numel() % w
    if num_over and torch.equal(got.flatten()[:-num_over], exact.flatten()[:-num_over]):
        fact = f"Only the last {num_over} of the numbers are not right."
        raise played.wrong("tail", rank, **both, fact=fact)
    tensors = [other for other in played.results if isinstance(other, torch.Tensor)]
    right = [other == exact for other in tensors if other.shape == exact.shape]
    if torch.stack(right).any(dim=0).all():
        fact = "Each number is right on some rank, and not on all of them."
        raise played.wrong("half-done", rank, **both, fact=fact)


all_reduce = Task(
    number="03.3",
    name="all_reduce",
    twice=True,
    cases=_reduce_cases,
    act=_reduce_act,
    judge=_reduce_judge,
    ok="2 (w - 1) messages a rank, and equal bits on all ranks",
    draw=lambda played: _draw_ring(played, ["grow", "copy"]),
    hints=(
        "A reduce-scatter leaves each rank with one finished chunk. What is missing then is an "
        "all-gather.",
        "Your two functions want chunks, which are flat. So make the tensor flat first, and give "
        "it its shape back at the end.",
        "tensor_split(w) makes w chunks of any length, some of them empty if need be; chunk(w) may "
        "make fewer. flatten() also takes a tensor that does not lie in one piece.",
        "chunks = tensor.flatten().tensor_split(dist.get_world_size()); their lengths are what "
        "all_gather wants; torch.cat and view(tensor.shape) come last.",
    ),
    mistakes=_RING_MISTAKES
    | {
        "whole-tensor": "Cut the tensor into w chunks, and send one in a step. The whole tensor "
        "costs w / 2 times as much, and each rank adds in an order of its own.",
        "too-long": "Cut so that no chunk is longer than n / w, rounded up: the chunks of "
        "tensor_split differ by one number at most.",
        "cost": "2 (w - 1) steps, and one message a step: send a chunk whole.",
        "digits": "Add in the dtype of the tensor: another one may not hold these sums.",
        "memory": "The tensor does not lie in one piece. flatten() takes its numbers in the order "
        "of its shape, wherever they lie.",
        "copied": "If a tensor does not lie in one piece, its flatten, reshape and contiguous are "
        "copies, and what you write into a copy is nowhere else. A clone of a transposed tensor "
        "is transposed, too.",
        "dtype": "The sum has the dtype of the tensor. torch.sum makes int64 of int32: use +.",
        "died": "A message that is longer than the tensor it arrives in ends the process. Sums "
        "keep the dtype of the tensor: torch.sum makes int64 of int32.",
        "average": "The sum is asked for. Leave it to the caller to divide.",
        "tail": "The length need not divide by w. Some chunks are then one number longer.",
        "half-done": "After the reduce-scatter a rank has its own chunk only. Gather the others.",
        "bits": "Finish each chunk on one rank, and send it to all others as it is.",
        "raised": "Think of lengths that w does not divide, of fewer numbers than ranks, or none; "
        "of tensors that do not lie in one piece; of dtypes that numpy lacks; of one rank alone.",
        "shape": "Give the sum the shape of the tensor that you were given.",
        "input-changed": "flatten and tensor_split return views: add into tensors of your own.",
    },
    allowed=("send", "recv"),
)

# ---- 03.4 fit latency and bandwidth ----

NOISE = 0.01
"""
How far the time of a quiet try may be off, as a share of it.
"""

_UNITS = (1e3, 1e6, 1e9, 2**10, 2**20, 2**30)
_NEAR = 0.08  # as far as the noise may pull a number
_SLOW = 1e5  # bytes a second: a hundredth of what any link here has, and less
_DRAWN_BYTES = {"1 B": 1, "1 KiB": 2**10, "64 KiB": 2**16, "16 MiB": 2**24}


def _fit_cases(draw):
    yield Case(4, {"times": "of small to large messages"}, seed=0)
    yield Case(1, {"times": "of middling messages only"})
    yield Case(1, {"times": "of small to large messages"})
    yield Case(1, {"times": "of large to small messages"})
    yield Case(1, {"times": "of messages in no order"})
    yield Case(1, {"times": "of which some were interrupted"})


def _link_and_times(case, rank):
    """
    Make up a link, and times as one would measure them on it.

    Returns:
        tuple: Latency in seconds, bandwidth in bytes a second, {bytes: seconds of five tries}.
    """
    rng = Random(f"{case.seed} {rank}")
    latency_s, bandwidth = rng.uniform(1e-5, 3e-5), rng.uniform(0.5e9, 1.5e9)
    sizes = [4**k for k in range(13)]  # 1 B to 16 MiB
    if "middling" in case["times"]:
        # Where latency and bytes take equally long, and around it.
        sizes = [round(share * latency_s * bandwidth) for share in (0.5, 1, 2, 4, 8)]
    # The largest seem a little slower, the next a little faster. Whoever gives them more say than
    # the small ones gets a latency from their noise.
    factors = [1 + rng.uniform(-0.8, 0.8) * NOISE for _ in sizes]
    factors[-2:] = [1 - 0.8 * NOISE, 1 + 0.8 * NOISE]
    points = list(zip(sizes, factors, strict=True))
    if "large to small" in case["times"]:
        points.reverse()
    if "no order" in case["times"]:
        # It begins and ends with the smallest, whose times differ by noise alone.
        points = [(4, 1 + 0.8 * NOISE), *rng.sample(points[2:], len(points) - 2)]
        points.append((1, 1 - 0.8 * NOISE))
    times = {}
    for size, factor in points:
        exact_s = factor * (latency_s + size / bandwidth)
        tries = [exact_s * (1 + rng.uniform(-0.1, 0.1) * NOISE) for _ in range(5)]
        if "interrupted" in case["times"]:
            for place in (0, rng.randint(1, 4)):
                # Not longer: a try that is weighed by 1 / its time would hardly count.
                tries[place] *= rng.uniform(3, 5)
        times[size] = tries
    return latency_s, bandwidth, times


def _fit_act(here, fit_link):
    def fit(times):
        got = fit_link(times)
        return got.tolist() if isinstance(got, np.ndarray) else got

    here.call(fit, _link_and_times(here.case, here.rank)[2])


def _fit_judge(played):
    for rank, got in enumerate(played.results):
        latency_s, bandwidth, times = _link_and_times(played.case, rank)
        pair = _pair_of(got)
        both = {"got": _rounded(pair or got), "expected": _rounded((latency_s, bandwidth))}
        if pair is None:
            raise played.wrong("no-pair", rank, **both, fact="It must return two numbers.")
        if pair[0] > 1 > pair[1]:
            fact = "A latency of more than a second is no latency."
            raise played.wrong("swapped", rank, **both, fact=fact)
        if 0 < pair[1] < 1:
            fact = "The second number is less than one byte a second."
            raise played.wrong("inverse", rank, **both, fact=fact)
        _judge_line(played, rank, pair, both, (latency_s, bandwidth, times))


def _pair_of(got):
    try:
        pair = [float(number) for number in got]
    except (TypeError, ValueError):
        return None
    return pair if len(pair) == 2 and all(map(isfinite, pair)) else None


def _rounded(numbers):
    return tuple(float(f"{one:.3g}") for one in numbers) if _pair_of(numbers) else numbers


def _judge_line(played, rank, pair, both, made_up):
    """
    Refuse a line that is further from the truth than the noise of its points explains.

    With m points that are off by a share e at most, the truth's misfit, as a vector of shares, is
    no longer than e sqrt(m). A line that fits at least as well is no longer away from the points,
    so it is within twice that of the truth. A little more, as shares are taken of either of them.
    """
    latency_s, bandwidth, times = made_up
    most_off = 2 * sqrt(len(times)) * NOISE * (1 + NOISE) / (1 - NOISE)
    off = {}
    for num_bytes in times:
        true_s = latency_s + num_bytes / bandwidth
        line_s = pair[0] + num_bytes / pair[1] if pair[1] else 0.0
        off[num_bytes] = abs(line_s - true_s) / true_s
    worst = max(off, key=off.__getitem__)
    if off[worst] <= most_off:
        return
    share = f"{off[worst]:.0%} off" if off[worst] < 10 else "off by more than 10 times the time"
    fact = (
        f"The time that it foretells for {worst:,} B is {share}; the noise of the points explains "
        f"{most_off:.0%}."
    )
    factors = pair[0] / latency_s, pair[1] / bandwidth
    least, largest = {num_bytes: min(tries) for num_bytes, tries in times.items()}, max(times)
    is_latency = abs(factors[0] - 1) <= most_off
    if "interrupted" in played.case["times"]:
        mistake = "interrupted"
    elif played.case["times"] in ("of large to small messages", "of messages in no order"):
        mistake = "no-order"
    elif any(map(_is_unit, factors)) or abs(factors[1] / 8 - 1) <= _NEAR:
        mistake = "unit"
        fact = "The latency is {:.3g} times the link's, the bandwidth {:.3g} times.".format(
            *factors
        )
    elif abs(factors[0] * factors[1] - 1) <= _NEAR:
        mistake = "times-over"
        fact = f"All that it foretells is {factors[0]:.3g} times as long as it takes."
    elif pair[1] <= 0:
        mistake = "small-say" if is_latency else "no-say"
        fact = "Its bandwidth is not above 0: more bytes would take less time."
    elif pair[1] < _SLOW:
        mistake = "logarithms"
    elif is_latency:
        mistake = "largest" if abs(pair[1] * least[largest] / largest - 1) <= _NEAR else "slope"
    elif "middling" in played.case["times"] and pair[0] >= (1 - NOISE) * min(least.values()):
        mistake = "smallest"
    else:
        mistake = "no-say"
    raise played.wrong(mistake, rank, **both, fact=fact)


def _is_unit(factor):
    return any(abs(one - 1) <= _NEAR for unit in _UNITS for one in (factor / unit, factor * unit))


def _fit_draw(played):
    rows = []
    for rank, got in enumerate(played.results):
        latency_s, bandwidth = _pair_of(got) or (0.0, 0.0)
        bandwidth = bandwidth or float("inf")
        times = _link_and_times(played.case, rank)[2]
        row = {"latency": _micro(latency_s), "bandwidth": f"{bandwidth / 1e9:.2f} GB/s"}
        for name, num_bytes in _DRAWN_BYTES.items():
            line_s = latency_s + num_bytes / bandwidth
            row[f"{name}: line, least"] = f"{_micro(line_s)}, {_micro(min(times[num_bytes]))}"
        rows.append(row)
    return holdings_picture(list(rows[0]), rows)


def _micro(seconds):
    return f"{seconds * 1e6:,.0f} us"


fit_link = Task(
    number="03.4",
    name="fit_link",
    twice=True,
    cases=_fit_cases,
    act=_fit_act,
    judge=_fit_judge,
    ok="as near to the truth as the noise of its points allows",
    draw=_fit_draw,
    hints=(
        "Seconds over bytes are a straight line. Where it begins is the latency; how steep it is "
        "tells the bandwidth.",
        "A program that interrupts makes a try longer, never shorter. So the least of the tries "
        "of a size is the one to take.",
        "The largest message takes a thousand times as long as the smallest, so 1 % of it is more "
        "than the whole latency. Divide each point's error by its time, and all have the same say.",
        "slope, latency_s = np.polyfit(sizes, least, 1, w=1 / least), with arrays of float64; "
        "the slope is in seconds a byte.",
    ),
    mistakes={
        "no-pair": "Return two numbers: the latency in seconds, the bandwidth in bytes a second.",
        "swapped": "Return the latency first. np.polyfit returns the slope first.",
        "unit": "Return seconds, and bytes a second: no milliseconds, no MiB, no bits.",
        "logarithms": "Seconds over bytes lie on a straight line, their logarithms do not. And a "
        "bandwidth is bytes a second.",
        "no-order": "A dictionary may hold its sizes in any order. Look at the sizes, not at their "
        "places.",
        "input-changed": "The dictionary and its lists are your caller's: sorted(tries) makes a "
        "new list.",
        "inverse": "The slope is in seconds a byte. A bandwidth is bytes a second.",
        "smallest": "Also the smallest message here has bytes, which take time. The latency is "
        "where the line begins, at no bytes.",
        "largest": "Also the largest message here has a latency in its time. Take the slope of "
        "the line between sizes.",
        "slope": "The latency is right, the bandwidth is not: it follows from the slope of the "
        "line alone. A size over its time has a latency in it.",
        "small-say": "The smallest sizes decide here, and their times hardly tell a bandwidth. If "
        "you weigh by 1 / size, or divide by it, they have nearly all the say. Weigh by 1 / time.",
        "times-over": "What tells the time of a size is one of its five tries, and neither their "
        "sum nor a part of it.",
        "no-say": "An error of 1 % of the largest time is more than the whole latency. Weigh each "
        "point by 1 / its time.",
        "interrupted": "Some tries took several times as long, as other programs ran. Take of each "
        "size the try that was left alone.",
        "forbidden": "The times are measured already: send nothing.",
    },
    allowed=(),
)

# ---- 03.5 predict bytes ----

_WAYS = {"hub": naive, "ring": textbook}


def _predict_cases(draw):
    yield Case(4, {"num_elements": 10, "dtype": "float32"}, seed=0)
    for world_size, dtype in ((1, "float32"), (2, "bfloat16"), (3, "float64"), (4, "int64")):
        num_elements = world_size * draw.randint(2, 30) + world_size - 1
        yield Case(world_size, {"num_elements": num_elements, "dtype": dtype})
    yield Case(4, {"num_elements": draw.randint(1, 3), "dtype": "float64"})
    yield Case(1, {"num_elements": draw.randint(10**6, 10**9), "dtype": "float32", "of": 48})


def _predict_act(here, predict_bytes):
    numbers = torch.zeros(0, dtype=getattr(torch, here["dtype"]), device=_sending_device(here))
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


def _predict_judge(played):
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


def _predict_draw(played):
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
    cases=_predict_cases,
    act=_predict_act,
    judge=_predict_judge,
    ok="to the byte, of a hub and of a ring, also of 48 ranks",
    draw=_predict_draw,
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
