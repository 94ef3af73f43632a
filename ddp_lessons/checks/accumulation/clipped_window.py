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
    yield Case(4, {"sizes": [4] * 3, "max_norm / norm": 0.3, "dtype": "float32"}, seed=0)
    for world_size, share in ((1, 0.5), (3, 0.1)):
        sizes = [draw.randint(2, 5)] * draw.randint(3, 5)
        data = {"sizes": sizes, "max_norm / norm": share, "dtype": "float64"}
        yield Case(world_size, data)
    # In this case the limit lies between the gradient's norm and its square.
    yield Case(2, {"sizes": [3] * 4, "max_norm / norm": 1.05, "dtype": "float64"}, seed=1)
    # In this case it lies between the norm and that of each parameter's gradient.
    yield Case(2, {"sizes": [3] * 3, "max_norm / norm": 0.9, "dtype": "float64"}, seed=7)
    data = {"sizes": [draw.randint(2, 5)], "max_norm / norm": 0.2, "dtype": "float64"}
    yield Case(2, {**data, "mode": "eval"})


def _act(context, clipped_window):
    watched = WatchedTraining(context)
    given = list(watched.batches)
    norm = window_of(context.case, watched.noted["first"].cpu()).right()[0].norm()
    limit = round(context["max_norm / norm"] * norm.item(), 3)
    kept = watched.call(context, clipped_window, watched.batches, limit)
    again = watched.call_again(clipped_window, given[1:] or given, limit)
    zeros = None
    if context["max_norm / norm"] > 1:  # in this case "scaled-up" is judged first
        # Inputs are zeros, and targets the model's own outputs: every gradient is exactly 0.
        with torch.no_grad():
            flat = [(0 * inputs, watched.model.module(0 * inputs)) for inputs, _ in given]
        zeros = watched.call_again(clipped_window, flat, limit)
    return kept | {"limit": limit, "again": again, "zeros": zeros}


def _judge(case_result):
    judge_trained(case_result)
    kept = case_result.seen[0].output
    window, limit = window_of(case_result.case, kept["first"]), kept["limit"]
    expected, slack, norm, norm_error = _clipped(window, limit, kept["first"].dtype)
    for rank, (seen, result) in enumerate(zip(case_result.seen, case_result.results, strict=True)):
        got = seen.output["gradient"]
        if got is None:
            raise case_result.wrong("no-gradient", rank, fact="There is no gradient in .grad.")
        if not bool(((got.double() - expected).abs() <= slack).all()):
            both = {"got": got, "expected": expected.to(got.dtype)}
            fact = f"Clipped to {limit:g}, the gradient is not the expected one."
            mistake = first_known(
                case_result, _clip_mistake(case_result, window, got.double(), limit, rank)
            )
            raise case_result.wrong(mistake, rank, **both, fact=fact)
        _judge_norm(case_result, rank, result, norm, norm_error, limit)
    for rank, events in enumerate(case_result.traces):
        is_own = [event.backward is None for event in events if event.is_communication]
        if any(is_own) and not all(is_own):
            fact = f"Rank {rank} makes {len(is_own)} collectives; 1 is enough."
            raise case_result.wrong("length-message", rank, fact=fact)
    judge_talk(case_result, num_syncs=1)
    judge_left(case_result)
    fewer = _clipped(fewer_of(case_result.case, kept["first"]), limit, kept["first"].dtype)
    for rank, seen in enumerate(case_result.seen):
        _judge_later(case_result, rank, seen.output, *fewer)


def _judge_later(case_result, rank, kept, expected, slack, norm, norm_error):
    result, got = kept["again"]
    if got is None or not bool(((got.double() - expected).abs() <= slack).all()):
        refuse_again(case_result, rank, got, expected)
    if not abs((number_of(result) or 0) - norm) <= norm_error:
        fact = "A second call on the same model, with .grad empty, returns another norm."
        raise case_result.wrong("again", rank, got=result, expected=norm, fact=fact)
    result, got = kept["zeros"] or (0.0, 0 * expected)  # None: not tried in this case
    if got is None or not bool((got.abs() < 1e-5).all()):  # NaN is refused as well
        fact = "The gradient of a window was all zeros, and must stay so."
        raise case_result.wrong("zero-length", rank, got=got, fact=fact)
    if not abs(number_of(result) or 0) < 1e-5:
        fact = "The gradient of a window is all zeros, so its norm is 0."
        raise case_result.wrong("other-length", rank, got=result, expected=0.0, fact=fact)


def _clipped(window, limit, dtype):
    # Return a window's clipped gradient and its error, and the norm before clipping and its
    # error.
    whole, error = window.right()
    norm, most_off = whole.norm().item(), error.norm().item()
    scale = min(1.0, limit / norm)
    unit = torch.finfo(dtype).eps / 2
    # The norm is off by the gradient's rounding and its own. torch's clip adds 1e-6 to the
    # norm.
    norm_error = most_off + len(whole) * unit * norm
    scale_error = scale * (norm_error + (1e-6 if scale < 1 else 0)) / (norm - norm_error)
    slack = scale * error + whole.abs() * scale_error + 4 * unit * whole.abs()
    return scale * whole, slack, norm, norm_error


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
    late, norm = sums.mean(0), whole.norm()
    parts = whole[:-1], whole[-1:]  # of the weight and of the bias
    results = [
        ("not-clipped", whole),
        ("scaled-up", whole * limit / norm),
        ("each-parameter", torch.cat([_clip(part, limit) for part in parts])),
        ("each-number", whole.clamp(-limit, limit)),
        ("before-sync", sum(_clip(one, limit) for one in own) / num_ranks),
        ("each-time", late),
        ("each-time", _clip(late, limit)),
        ("own-length", whole * min(1.0, limit / own[rank].norm())),
        ("length-shared", whole * min(1.0, limit / norm / num_ranks)),
        ("length-shared", whole * min(1.0, limit / norm / math.sqrt(num_ranks))),
        ("sum-of-lengths", whole * min(1.0, limit / sum(part.norm() for part in parts))),
        ("no-root", whole * min(1.0, limit / norm**2)),
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


def _judge_norm(case_result, rank, result, norm, most_off, limit):
    got = number_of(result)
    if got is None:
        fact = "It must return one number."
        raise case_result.wrong("no-length", rank, got=result, fact=fact)
    if abs(got - norm) <= most_off:
        return
    num_ranks, k = case_result.case.world_size, len(case_result.case["sizes"])
    norms = {
        "length-after": limit,
        "undivided": k * norm,
        "no-root": norm**2,
        "length-shared": num_ranks * norm,
    }
    near = [name for name, one in norms.items() if math.isclose(got, one, rel_tol=1e-3)]
    if math.isclose(got, norm, rel_tol=FEWER_DIGITS) or got in map(int, (norm, norm + 0.5)):
        near = ["digits"]
    both = {"got": result, "expected": norm}
    fact = "The gradient is right, but the returned number is not its norm before clipping."
    raise case_result.wrong([*near, "other-length"][0], rank, **both, fact=fact)


def _draw(case_result):
    names = ["norm before", "max_norm", "norm after", "collectives"]
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
    ok="one all-reduce a window, and no message for the norm",
    draw=_draw,
    hints=(
        "Clip the gradient that the step uses: the gradient of the whole window, averaged over "
        "ranks. When do ranks have it, and which ranks?",
        "After the last backward of the window every rank has the same gradient. So each rank "
        "computes the same norm without a message.",
        "Take the gradients of all parameters as one long vector. Its norm is the root of the sum "
        "of all squares, over all parameters.",
        "norm = torch.cat([g.flatten() for g in gradients]).norm(); if norm > max_norm, multiply "
        "each g in place by max_norm / norm. torch.nn.utils.clip_grad_norm_ does the same.",
    ),
    mistakes=WINDOW_MISTAKES
    | AGAIN_MISTAKES
    | {
        "raised": "The message names a line of yours. Some parameters are frozen: their .grad is "
        "None. A gradient may be all zeros: then its norm is 0.",
        "zero-length": "A gradient of zeros stays as it is. Divide by a norm only if the norm is "
        "above max_norm.",
        "scaled": "The direction of the gradient is right, but the factor is wrong. The factor is "
        "max_norm divided by the norm of the whole gradient, and at most 1.",
        "input-changed": "Leave the micro-batches as they are.",
        "no-gradient": "Leave the clipped gradient in .grad.",
        "nothing": "Return the norm that the gradient had before clipping.",
        "no-length": "Return the norm as a float or as a tensor of one number.",
        "not-clipped": "The norm of all gradients as one vector is above max_norm. Change .grad in "
        "place; a new tensor alone changes nothing.",
        "scaled-up": "A gradient whose norm is at most max_norm stays as it is.",
        "each-parameter": "All parameters together are one vector: scale them by one factor.",
        "each-number": "Clipping each number changes the direction of the gradient. Scale all "
        "numbers by one factor.",
        "each-time": "Clip once, after the last micro-batch: gradients that are added after a clip "
        "would weigh more.",
        "before-sync": "Each rank's own sum has another norm. Clip after the all-reduce.",
        "own-length": "Use the norm of the average over ranks.",
        "length-shared": "After the all-reduce each rank holds the whole gradient, not a part of "
        "it. No sum over ranks is left to compute.",
        "length-message": "After the all-reduce all ranks have the same gradient: each rank can "
        "compute the norm alone.",
        "sum-of-lengths": "The norms of parts do not add up, but their squares do.",
        "no-root": "The norm is the root of the sum of squares.",
        "length-after": "Return the norm before clipping: it tells the caller whether the gradient "
        "was clipped.",
        "other-length": "Return the norm of the window's gradient, after the all-reduce and before "
        "clipping.",
        "values": "First compute the window's gradient as in task 07.1. Then scale all of it by "
        "one factor.",
    },
    allowed=("all_reduce",),
    warm_up=first_ddp,
)
