"""
Task 07.3: clip by the global norm.

On each rank: `_act`. In the kernel: the rest.
"""

import math

import torch

from ddp_lessons.checks.accumulation.training import (
    AGAIN_MISTAKES,
    FEWER_DIGITS,
    WINDOW_MISTAKES,
    WatchedTraining,
    fewer_of,
    first_known,
    is_near,
    is_parallel,
    is_rough,
    judge_left,
    judge_talk,
    judge_trained,
    met_by_all,
    number_of,
    refuse_again,
    window_of,
)
from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.checks.kit.shared.warm_up import first_ddp
from ddp_lessons.pictures import holdings_picture
from ddp_lessons.trace import collectives


def _cases(draw):
    yield Case(4, {"sizes": [4] * 3, "limit / length": 0.3, "dtype": "float32"}, seed=0)
    for world_size, share in ((1, 0.5), (3, 0.1)):
        sizes = [draw.randint(2, 5)] * draw.randint(3, 5)
        data = {"sizes": sizes, "limit / length": share, "dtype": "float64"}
        yield Case(world_size, data)
    # In this case the limit lies between the gradient's length and its square.
    yield Case(2, {"sizes": [3] * 4, "limit / length": 1.05, "dtype": "float64"}, seed=1)
    # In this case it lies between the length and that of each parameter's gradient.
    yield Case(2, {"sizes": [3] * 3, "limit / length": 0.9, "dtype": "float64"}, seed=7)
    data = {"sizes": [draw.randint(2, 5)], "limit / length": 0.2, "dtype": "float64"}
    yield Case(2, {**data, "mode": "eval"})


def _act(context, clipped_window):
    watched = WatchedTraining(context)
    given = list(watched.batches)
    length = window_of(context.case, watched.noted["first"].cpu()).right()[0].norm()
    limit = round(context["limit / length"] * length.item(), 3)
    kept = watched.call(context, clipped_window, watched.batches, limit)
    again = watched.call_again(clipped_window, given[1:] or given, limit)
    zeros = None
    if context["limit / length"] > 1:  # in this case "scaled-up" is judged first
        # Inputs are zeros, and targets the model's own outputs: every gradient is exactly 0.
        with torch.no_grad():
            flat = [(0 * inputs, watched.model.module(0 * inputs)) for inputs, _ in given]
        zeros = watched.call_again(clipped_window, flat, limit)
    return kept | {"limit": limit, "again": again, "zeros": zeros}


def _judge(case_result):
    judge_trained(case_result)
    kept = case_result.seen[0].output
    window, limit = window_of(case_result.case, kept["first"]), kept["limit"]
    expected, slack, length, length_error = _clipped(window, limit, kept["first"].dtype)
    for rank, (seen, result) in enumerate(zip(case_result.seen, case_result.results, strict=True)):
        got = seen.output["gradient"]
        if got is None:
            raise case_result.wrong("no-gradient", rank, fact="There is no gradient in .grad.")
        if not bool(((got.double() - expected).abs() <= slack).all()):
            both = {"got": got, "expected": expected.to(got.dtype)}
            fact = f"Clipped to {limit:g}, the gradient is not the one expected."
            mistake = first_known(
                case_result, _clip_mistake(case_result, window, got.double(), limit, rank)
            )
            raise case_result.wrong(mistake, rank, **both, fact=fact)
        _judge_length(case_result, rank, result, length, length_error, limit)
    for rank, events in enumerate(case_result.traces):
        is_own = [event.backward is None for event in events if event.is_communication]
        if any(is_own) and not all(is_own):
            fact = f"Rank {rank} makes {len(is_own)} collectives; 1 would do."
            raise case_result.wrong("length-message", rank, fact=fact)
    judge_talk(case_result, num_syncs=1)
    judge_left(case_result)
    fewer = _clipped(fewer_of(case_result.case, kept["first"]), limit, kept["first"].dtype)
    for rank, seen in enumerate(case_result.seen):
        _judge_later(case_result, rank, seen.output, *fewer)


def _judge_later(case_result, rank, kept, expected, slack, length, length_error):
    result, got = kept["again"]
    if got is None or not bool(((got.double() - expected).abs() <= slack).all()):
        refuse_again(case_result, rank, got, expected)
    if not abs((number_of(result) or 0) - length) <= length_error:
        fact = "Called once more on the same model, .grad empty, it returns another length."
        raise case_result.wrong("again", rank, got=result, expected=length, fact=fact)
    result, got = kept["zeros"] or (0.0, 0 * expected)  # None: not tried in this case
    if got is None or not bool((got.abs() < 1e-5).all()):  # NaN is refused as well
        fact = "The gradient of a window is all zeros, and does not stay so."
        raise case_result.wrong("zero-length", rank, got=got, fact=fact)
    if not abs(number_of(result) or 0) < 1e-5:
        fact = "The gradient of a window is all zeros, so its length is 0."
        raise case_result.wrong("other-length", rank, got=result, expected=0.0, fact=fact)


def _clipped(window, limit, dtype):
    # Return a window's clipped gradient and its error, and the length before clipping and its
    # error.
    whole, error = window.right()
    length, most_off = whole.norm().item(), error.norm().item()
    scale = min(1.0, limit / length)
    unit = torch.finfo(dtype).eps / 2
    # The length is off by the gradient's rounding and its own. torch's clip adds 1e-6 to the
    # length.
    length_error = most_off + len(whole) * unit * length
    scale_error = scale * (length_error + (1e-6 if scale < 1 else 0)) / (length - length_error)
    slack = scale * error + whole.abs() * scale_error + 4 * unit * whole.abs()
    return scale * whole, slack, length, length_error


def _clip(numbers, limit):
    return numbers * min(1.0, limit / numbers.norm().item())


def _clip_mistake(case_result, window, got, limit, rank):
    whole, num_ranks = window.right()[0], window.num_ranks
    own = [window.of(window.own(one))[0] for one in range(num_ranks)]
    sums = torch.zeros_like(window.gradients[:, 0])  # (w, G)
    for number in range(window.k):
        sums = sums + window.gradients[:, number] / window.k
        if number < window.k - 1:
            sums = torch.stack([_clip(one, limit) for one in sums])
    late, length = sums.mean(0), whole.norm()
    parts = whole[:-1], whole[-1:]  # of the weight and of the bias
    results = [
        ("not-clipped", whole),
        ("scaled-up", whole * limit / length),
        ("each-parameter", torch.cat([_clip(part, limit) for part in parts])),
        ("each-number", whole.clamp(-limit, limit)),
        ("before-sync", sum(_clip(one, limit) for one in own) / num_ranks),
        ("each-time", late),
        ("each-time", _clip(late, limit)),
        ("own-length", whole * min(1.0, limit / own[rank].norm())),
        ("length-shared", whole * min(1.0, limit / length / num_ranks)),
        ("length-shared", whole * min(1.0, limit / length / math.sqrt(num_ranks))),
        ("sum-of-lengths", whole * min(1.0, limit / sum(part.norm() for part in parts))),
        ("no-root", whole * min(1.0, limit / length**2)),
        ("no-sync", _clip(own[rank], limit)),
    ]
    right = _clip(whole, limit)
    # A mistake that changes nothing in this case cannot be the one that was made.
    others = [(name, numbers) for name, numbers in results if not is_near(numbers, right)]
    found = next((name for name, numbers in others if is_near(got, numbers)), None)
    if found is None and is_rough(got, right):
        found = "digits"
    if found is None and is_parallel(got, whole):
        found = window.mistake(got, rank) or "scaled"
    if found is None:
        weights = case_result.seen[0].output["first"]
        other = met_by_all(case_result.case, weights, range(window.k), window)
        found = "shapes" if is_near(got, _clip(other, limit)) else window.mistake(got, rank)
    return found


def _judge_length(case_result, rank, result, length, most_off, limit):
    got = number_of(result)
    if got is None:
        fact = "It must return one number."
        raise case_result.wrong("no-length", rank, got=result, fact=fact)
    if abs(got - length) <= most_off:
        return
    num_ranks, k = case_result.case.world_size, len(case_result.case["sizes"])
    lengths = {
        "length-after": limit,
        "undivided": k * length,
        "no-root": length**2,
        "length-shared": num_ranks * length,
    }
    near = [name for name, one in lengths.items() if math.isclose(got, one, rel_tol=1e-3)]
    if math.isclose(got, length, rel_tol=FEWER_DIGITS) or got in map(int, (length, length + 0.5)):
        near = ["digits"]
    both = {"got": result, "expected": length}
    fact = "The gradient is right; what is returned is not its length before."
    raise case_result.wrong([*near, "other-length"][0], rank, **both, fact=fact)


def _draw(case_result):
    names = ["length before", "limit", "length after", "collectives"]
    rows = []
    for seen, result, events in zip(
        case_result.seen, case_result.results, case_result.traces, strict=True
    ):
        kept = seen.output
        after = None if kept["gradient"] is None else kept["gradient"].norm()
        numbers = map(number_of, (result, kept["limit"], after))
        texts = ["no number" if number is None else f"{number:.2f}" for number in numbers]
        texts.append(str(len(collectives(events))))
        rows.append(dict(zip(names, texts, strict=True)))
    return holdings_picture(names, rows)


clipped_window = Task(
    number="07.3",
    name="clipped_window",
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="one sync a window, and no message for the length",
    draw=_draw,
    hints=(
        "What must be shortened is the gradient that the step goes by: the whole window's, "
        "averaged over ranks. When do ranks have it, and which of them?",
        "After the last backward of the window every rank has the same gradient. So each finds "
        "the same length by itself.",
        "The gradients of all parameters are one long vector. Its length is the root of the sum "
        "of all squares, over all parameters.",
        "norm = torch.cat([g.flatten() for g in gradients]).norm(); if norm > max_norm, multiply "
        "each g in place by max_norm / norm. torch.nn.utils.clip_grad_norm_ does the same.",
    ),
    mistakes=WINDOW_MISTAKES
    | AGAIN_MISTAKES
    | {
        "raised": "The line that is named is yours. Some parameters are frozen: their .grad is "
        "None. A gradient may be all zeros: then its length is 0.",
        "zero-length": "A gradient of zeros stays as it is. Divide by a length only if it is above "
        "max_norm.",
        "scaled": "The direction is right, the factor is not: it is max_norm over the length of "
        "the whole gradient, and at most 1.",
        "input-changed": "Leave the micro-batches as they are.",
        "no-gradient": "Leave the clipped gradient in .grad.",
        "nothing": "Return the length that the gradient had before it was clipped.",
        "no-length": "Return the length as a float or as a tensor of one number.",
        "not-clipped": "All gradients as one vector are longer than max_norm. Change .grad in "
        "place; a new tensor alone changes nothing.",
        "scaled-up": "A gradient that is short enough stays as it is.",
        "each-parameter": "All parameters together are one vector: scale them by one factor.",
        "each-number": "Clipping each number turns the gradient another way. Scale them all by "
        "one factor.",
        "each-time": "Clip once, after the last micro-batch: what comes later would count more.",
        "before-sync": "Each rank's own sum has another length. Clip after the sync.",
        "own-length": "The length that counts is that of the average over ranks.",
        "length-shared": "After the sync each rank holds the whole gradient, not a part of it. "
        "Nothing is left to add up over ranks.",
        "length-message": "After the sync all ranks have the same gradient: each can find its "
        "length alone.",
        "sum-of-lengths": "Lengths of parts do not add up; their squares do.",
        "no-root": "The length is the root of the sum of squares.",
        "length-after": "Return the length before clipping: it tells whether there was anything "
        "to clip.",
        "other-length": "Return the length of the window's gradient, after the sync, before "
        "clipping.",
        "values": "First make the window's gradient as in task 07.1; then scale it as a whole.",
    },
    allowed=("all_reduce",),
    warm_up=first_ddp,
)
