"""
Exercise 07: when should ranks talk?

Legend: w ranks, k micro-batches in a window, G numbers in a gradient.
"""

import math

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ddp_lessons.checks.kit import Case, Task, generator
from ddp_lessons.checks.kit.warm_up import first_ddp
from ddp_lessons.checks.kit.windows import Watched, Window
from ddp_lessons.pictures import (
    holdings_picture,
    samples_picture,
    timeline_picture,
    timeline_tracks,
)
from ddp_lessons.trace import collectives, merge
from ddp_lessons.trace.events import GRADIENT


def _known(played, *names):
    """
    Return the first of some mistakes that a task tells apart.
    """
    return next((name for name in names if name in played.task.mistakes), "values")


def _judge_talk(played, num_syncs):
    """
    Refuse ranks that talk more often than that, hold too much, or are left inside `no_sync`.
    """
    for rank, (seen, events) in enumerate(zip(played.seen, played.traces, strict=True)):
        num_calls = len(collectives(events))
        if num_calls > num_syncs:
            fact = f"Rank {rank} makes {num_calls} collectives; {num_syncs} would do."
            is_half = any(
                forward["forward"] and forward["backward"] is False
                for forward in seen.kept["forwards"]
            )
            names = ["forward-outside", "cost"] if is_half else ["cost"]
            raise played.wrong(_known(played, *names), rank, fact=fact)
        most, one = seen.kept["peak_bytes"], seen.kept["one_bytes"]
        if most > 2 * one:
            times = f"{most / one:.1f} times the activations of one micro-batch"
            raise played.wrong("memory", rank, fact=f"Rank {rank} holds {times} at a time.")
        if not seen.kept["syncs"] and "left-off" in played.task.mistakes:
            fact = "The model is left as in no_sync: it would never sync again."
            raise played.wrong("left-off", rank, fact=fact)


def _draw_timeline(played):
    return timeline_picture(timeline_tracks(merge(played.traces)), "events, in order")


WINDOW_MISTAKES = {
    "cost": "All micro-batches but the last run inside the model's no_sync.",
    "no-sync": "The last micro-batch of a window runs outside of no_sync, and its backward syncs "
    "what has added up.",
    "undivided": "Each backward adds a whole mean. Weigh each loss, so that the sum is a mean.",
    "memory": "Forward and backward one micro-batch before you touch the next: only then are its "
    "activations given back.",
}

# ---- 07.1 a window with one sync ----


def _cases_accumulate(draw):
    yield Case(4, {"sizes": [4] * 3, "dtype": "float32"}, seed=0)
    for world_size in (1, 2, 3):
        sizes = [draw.randint(2, 5)] * draw.randint(4, 6)
        yield Case(world_size, {"sizes": sizes, "dtype": "float64"})
    yield Case(2, {"sizes": [draw.randint(2, 5)], "dtype": "float32"})


def _act_accumulate(here, accumulate):
    watched = Watched(here)
    return watched.call(here, accumulate, watched.batches)


def _judge_accumulate(played):
    num_batches = len(played.case["sizes"])
    weights = played.seen[0].kept["first"]
    window = Window(played.case, weights, range(num_batches), num_batches)
    for rank, seen in enumerate(played.seen):
        _judge_gradient(played, window, rank, seen.kept["gradient"])
    _judge_talk(played, num_syncs=1)


def _judge_gradient(played, window, rank, got):
    expected, _ = window.right()
    if got is None:
        fact = "There is no gradient in .grad."
        raise played.wrong("no-gradient", rank, fact=fact)
    if window.agrees(got, window.all()):
        return
    both = {"got": got, "expected": expected.to(got.dtype)}
    syncs = [event.backward for event in played.traces[rank] if event.is_communication]
    last = max([0, *(e.backward for e in played.traces[rank] if e.kind == GRADIENT)])
    if len(syncs) == 1 and syncs[0] is not None and syncs[0] < last:
        fact = f"Its sync is in backward {syncs[0] + 1} of {last + 1}."
        raise played.wrong("sync-early", rank, **both, fact=fact)
    mistake = _known(played, window.mistake(got, rank))
    fact = "The gradient, of 6 weights and then the bias, is not the one expected."
    raise played.wrong(mistake, rank, **both, fact=fact)


accumulate = Task(
    number="07.1",
    name="accumulate",
    cases=_cases_accumulate,
    act=_act_accumulate,
    judge=_judge_accumulate,
    ok="one sync a window, the activations of one micro-batch",
    draw=_draw_timeline,
    hints=(
        "A backward adds to .grad. So the window's gradient makes itself, if nobody empties .grad "
        "and the last backward of the window is the only one that talks.",
        "All micro-batches but the last stand inside `with model.no_sync():`, forward and "
        "backward. The last one stands outside.",
        "k means of equal parts add up to k times the mean of the whole: divide each loss by k.",
        "with model.no_sync(): loop over micro_batches[:-1]; then the same two lines once more "
        "for micro_batches[-1].",
    ),
    mistakes=WINDOW_MISTAKES
    | {
        "forbidden": "A gradient adds up in .grad by itself. The only call that ranks need is "
        "DDP's all-reduce.",
        "forward-outside": "DDP decides in the forward whether to sync. So the forward, too, "
        "belongs inside no_sync.",
        "zeroed": "Between the micro-batches of a window nobody may empty .grad.",
        "divided-twice": "DDP divides by the number of ranks already.",
        "summed": "An average over ranks is wanted, not a sum. DDP's own sync makes one.",
        "left-off": "Use no_sync in a with statement: it turns the sync on again when it ends.",
        "raised": "The line that is named is yours. Some parameters are frozen: their .grad is "
        "None.",
        "deadlock": "All ranks sync, each once for the window: no rank has a part of its own.",
        "input-changed": "Leave the micro-batches as they are. Divide the loss, not the samples.",
        "no-gradient": "Call backward on the loss of each micro-batch, and leave .grad full.",
        "sync-early": "What is added after the sync stays on its rank: sync with the last "
        "micro-batch, not before.",
        "values": "Each micro-batch counts with 1/k of the mean of its loss.",
    },
    allowed=("all_reduce",),
    returns=False,
    warm_up=first_ddp,
)

# ---- 07.2 the last window ----


def _cases_epoch(draw):
    yield Case(4, {"sizes": [2] * 7 + [1], "k": 3, "dtype": "float32"}, seed=0)
    for world_size in (1, 2, 3):
        k, size = draw.randint(3, 4), draw.randint(3, 5)
        num_batches = draw.randint(1, 2) * k + draw.randint(2, k - 1)
        sizes = [size] * (num_batches - 1) + [draw.randint(1, size - 1)]
        yield Case(world_size, {"sizes": sizes, "k": k, "dtype": "float64"})
    yield Case(2, {"sizes": [3] * 4, "k": 2, "dtype": "float32"})


def _act_epoch(here, train_epoch):
    watched = Watched(here, lambda parameters: torch.optim.SGD(parameters, lr=0.05))
    return watched.call(here, train_epoch, watched.optimizer, watched.batches, here["k"])


def _judge_epoch(played):
    case = played.case
    num_batches, k = len(case["sizes"]), case["k"]
    places = [range(i, min(i + k, num_batches)) for i in range(0, num_batches, k)]
    nums = [len(seen.kept["steps"]) for seen in played.seen]
    for rank, got in enumerate(nums):
        _judge_num_steps(played, rank, got, len(places), len(set(nums)) == 1)
    for number, part in enumerate(places):
        window = Window(case, played.seen[0].kept["steps"][number]["weights"], part, k)
        for rank, seen in enumerate(played.seen):
            before = seen.kept["steps"][number - 1]["gradient"] if number else None
            got = seen.kept["steps"][number]["gradient"]
            _judge_step(played, window, rank, got, before, f"Step {number + 1} of {len(places)}")
    _judge_talk(played, num_syncs=len(places))


def _judge_num_steps(played, rank, got, expected, is_alike):
    if got == expected:
        return
    fact = f"Rank {rank} makes {got} steps; {expected} were expected."
    if not is_alike:
        raise played.wrong("not-all-step", rank, fact=fact)
    num_batches, k = len(played.case["sizes"]), played.case["k"]
    names = {num_batches // k: "lost", num_batches: "each-batch", 0: "no-step"}
    raise played.wrong(names.get(got, "num-steps"), rank, fact=fact)


def _judge_step(played, window, rank, got, before, which):
    expected, error = window.right()
    if got is None or not got.any():
        fact = f"{which} has no gradient to go by."
        raise played.wrong("zeroed-first", rank, fact=fact)
    if window.agrees(got, window.all()):
        return
    both = {"got": got, "expected": expected.to(got.dtype)}
    fact = f"{which} goes by another gradient than the mean over its samples."
    if before is not None:
        # The sum of both is rounded once more.
        slack = 2 * error + torch.finfo(got.dtype).eps * got.double().abs()
        if bool(((got.double() - before.double() - expected).abs() <= slack).all()):
            raise played.wrong("not-zeroed", rank, **both, fact=fact)
    raise played.wrong(_known(played, window.mistake(got, rank)), rank, **both, fact=fact)


def _draw_samples(played):
    num_own, num_ranks = sum(played.case["sizes"]), played.case.world_size
    steps = [
        [[rank + sample * num_ranks for sample in step["samples"]] for step in seen.kept["steps"]]
        for rank, seen in enumerate(played.seen)
    ]
    return samples_picture(steps, num_own * num_ranks)


train_epoch = Task(
    number="07.2",
    name="train_epoch",
    cases=_cases_epoch,
    act=_act_epoch,
    judge=_judge_epoch,
    ok="every sample reaches a step with equal weight, one sync a step",
    draw=_draw_samples,
    hints=(
        "Cut the list of batches into windows first: k batches each, and what remains is a window "
        "too. Then each window is like task 07.1, and a step.",
        "A slice that goes beyond the end of a list is shorter, without an error: "
        "batches[start:start + k].",
        "A batch of n samples counts with n / N in a window of N samples. N is not k times n in "
        "the last window.",
        "For each window: total = sum(len(y) for _, y in window); each loss times "
        "len(y) / total; no_sync for window[:-1] only; then step and zero_grad.",
    ),
    mistakes=WINDOW_MISTAKES
    | {
        "forward-outside": "DDP decides in the forward whether to sync. So the forward, too, "
        "belongs inside no_sync.",
        "zeroed": "Between the micro-batches of a window nobody may empty .grad.",
        "divided-twice": "DDP divides by the number of ranks already.",
        "lost": "The batches that are left over at the end make a window too, and it needs a step.",
        "each-batch": "A step follows each window of k batches, not each batch.",
        "no-step": "Call optimizer.step() at the end of each window.",
        "not-all-step": "Every rank has an optimizer of its own: all make the same steps.",
        "num-steps": "One step for each k batches, and one for what is left over.",
        "zeroed-first": "First step, then zero_grad: a step goes by what is in .grad.",
        "not-zeroed": "After a step, empty .grad, or the next window adds to this one.",
        "by-k": "The last window may have fewer than k batches, and its last batch fewer samples. "
        "Divide by what is there.",
        "mean-of-means": "A batch with fewer samples must count less: weigh by samples.",
        "no-sync": "Each window syncs with its own last batch, also the shorter one at the end.",
        "values": "Take the last window: write down how many samples each of its batches has.",
    },
    allowed=("all_reduce",),
    returns=False,
    warm_up=first_ddp,
)

# ---- 07.3 clip by the global norm ----


def _cases_clip(draw):
    yield Case(4, {"sizes": [4] * 3, "limit / length": 0.3, "dtype": "float32"}, seed=0)
    for world_size, share in ((2, 3.0), (1, 0.5), (3, 0.1)):
        sizes = [draw.randint(2, 5)] * draw.randint(3, 5)
        data = {"sizes": sizes, "limit / length": share, "dtype": "float64"}
        yield Case(world_size, data)


def _window_of(case, weights):
    return Window(case, weights, range(len(case["sizes"])), len(case["sizes"]))


def _act_clip(here, clipped_window):
    watched = Watched(here)
    length = _window_of(here.case, watched.noted["first"].cpu()).right()[0].norm()
    limit = round(here["limit / length"] * length.item(), 3)
    return watched.call(here, clipped_window, watched.batches, limit) | {"limit": limit}


def _judge_clip(played):
    kept = played.seen[0].kept
    window, limit = _window_of(played.case, kept["first"]), kept["limit"]
    whole, error = window.right()
    length, most_off = whole.norm().item(), error.norm().item()
    scale = min(1.0, limit / length)
    unit = torch.finfo(kept["first"].dtype).eps / 2
    # The length is off by the gradient's rounding and its own; torch's clip adds 1e-6 to it.
    length_error = most_off + len(whole) * unit * length
    scale_error = scale * (length_error + (1e-6 if scale < 1 else 0)) / (length - length_error)
    slack = scale * error + whole.abs() * scale_error + 4 * unit * whole.abs()
    for rank, (seen, result) in enumerate(zip(played.seen, played.results, strict=True)):
        got = seen.kept["gradient"]
        if got is None:
            raise played.wrong("no-gradient", rank, fact="There is no gradient in .grad.")
        if not bool(((got.double() - scale * whole).abs() <= slack).all()):
            both = {"got": got, "expected": (scale * whole).to(got.dtype)}
            fact = f"Clipped to {limit:g}, the gradient is not the one expected."
            mistake = _known(played, _clip_mistake(window, got.double(), limit, rank))
            raise played.wrong(mistake, rank, **both, fact=fact)
        _judge_length(played, rank, result, length, length_error, limit)
    for rank, events in enumerate(played.traces):
        extra = [
            event.name for event in events if event.is_communication and event.backward is None
        ]
        if len(collectives(events)) > 1 and extra:
            fact = f"Rank {rank} makes {len(collectives(events))} collectives; 1 would do."
            raise played.wrong("length-message", rank, fact=fact)
    _judge_talk(played, num_syncs=1)


def _clip(numbers, limit):
    return numbers * min(1.0, limit / numbers.norm().item())


def _is_near(one, other):
    # Only to name a mistake that was found: most differ by far more than a thousandth.
    return bool((one - other).norm() <= 1e-3 * other.norm())


def _clip_mistake(window, got, limit, rank):
    whole, num_ranks = window.right()[0], window.num_ranks
    own = [window.of(window.own(one))[0] for one in range(num_ranks)]
    sums = torch.zeros_like(window.gradients[:, 0])  # (w, G)
    for number in range(window.k):
        sums = sums + window.gradients[:, number] / window.k
        if number < window.k - 1:
            sums = torch.stack([_clip(one, limit) for one in sums])
    late, length = sums.mean(0), whole.norm()
    parts = whole[:-1], whole[-1:]  # the weight's and the bias's
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
    found = next((name for name, numbers in results if _is_near(got, numbers)), None)
    return found or window.mistake(got, rank)


def _judge_length(played, rank, result, length, most_off, limit):
    try:
        got = float(result)
    except (TypeError, ValueError, RuntimeError):
        fact = "It must return one number."
        raise played.wrong("no-length", rank, got=result, fact=fact) from None
    if abs(got - length) <= most_off:
        return
    num_ranks, k = played.case.world_size, len(played.case["sizes"])
    lengths = {
        "length-after": limit,
        "undivided": k * length,
        "no-root": length**2,
        "length-shared": num_ranks * length,
    }
    near = [name for name, one in lengths.items() if math.isclose(got, one, rel_tol=1e-3)]
    both = {"got": result, "expected": length}
    fact = "The gradient is right; what is returned is not its length before."
    raise played.wrong([*near, "other-length"][0], rank, **both, fact=fact)


def _draw_lengths(played):
    names = ["length before", "limit", "length after", "collectives"]
    rows = []
    for seen, result, events in zip(played.seen, played.results, played.traces, strict=True):
        kept = seen.kept
        after = None if kept["gradient"] is None else kept["gradient"].norm()
        texts = [*map(_short, (result, kept["limit"], after)), str(len(collectives(events)))]
        rows.append(dict(zip(names, texts, strict=True)))
    return holdings_picture(names, rows)


def _short(number):
    # A wrong answer is drawn too, and it may have returned anything.
    try:
        return f"{float(number):.2f}"
    except (TypeError, ValueError, RuntimeError):
        return "no number"


clipped_window = Task(
    number="07.3",
    name="clipped_window",
    cases=_cases_clip,
    act=_act_clip,
    judge=_judge_clip,
    ok="one sync a window, and no message for the length",
    draw=_draw_lengths,
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
    | {
        "raised": "The line that is named is yours. Some parameters are frozen: their .grad is "
        "None.",
        "no-gradient": "Leave the clipped gradient in .grad.",
        "nothing": "Return the length that the gradient had before it was clipped.",
        "no-length": "Return the length as a float or as a tensor of one number.",
        "not-clipped": "The gradient is longer than max_norm. Change .grad in place; a new tensor "
        "alone changes nothing.",
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

# ---- 07.4 a plateau schedule that all ranks agree on ----

RATE, FACTOR, PATIENCE, NUM_STEPS = 0.8, 0.5, 1, 6
MESSAGE_BYTES = 16  # two numbers of float64


def _cases_plateau(draw):
    yield Case(4, {"samples": [5, 1, 3, 2]}, seed=37)
    for world_size in (1, 2, 3):
        samples = [draw.randint(1, 9) for _ in range(world_size)]
        yield Case(world_size, {"samples": samples})
    yield Case(3, {"samples": [0, draw.randint(1, 4), draw.randint(5, 9)]})


def _totals(case, rank):
    """
    Return the sum of a rank's losses at each step: whole numbers, so that sums are exact.
    """
    shape, num_samples = (NUM_STEPS,), case["samples"][rank]
    means = torch.randint(1, 30, shape, generator=generator(case, rank))
    return [float(mean * num_samples) for mean in means]


def _act_plateau(here, plateau_step):
    weight = torch.zeros(1, device=here.device, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=RATE)
    schedule = ReduceLROnPlateau(optimizer, factor=FACTOR, patience=PATIENCE)
    noted = []
    for total in _totals(here.case, here.rank):
        here.call(plateau_step, schedule, total, here["samples"][here.rank])
        noted.append(_noted(optimizer, schedule))
    return noted


def _noted(optimizer, schedule):
    rate = optimizer.param_groups[0]["lr"]
    state = schedule.state_dict()
    return {"rate": rate, "steps": state["last_epoch"], "best": float(state["best"])}


def _right_plateau(metrics):
    """
    Return what one process notes that has all samples.
    """
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=RATE)
    schedule = ReduceLROnPlateau(optimizer, factor=FACTOR, patience=PATIENCE)
    noted = []
    for metric in metrics:
        schedule.step(metric)
        noted.append(_noted(optimizer, schedule))
    return noted


def _judge_plateau(played):
    case = played.case
    totals = [_totals(case, rank) for rank in range(case.world_size)]
    means = [sum(step) / sum(case["samples"]) for step in zip(*totals, strict=True)]
    right = _right_plateau(means)
    for number, (mean, expected) in enumerate(zip(means, right, strict=True)):
        step = [one[number] for one in totals]
        for seen in played.seen:
            _judge_mean(played, seen, number, mean, step)
        for seen in played.seen:
            _judge_schedule(played, seen, number, expected, totals)
    for seen in played.seen:
        for call in seen.calls:
            _judge_message(played, seen.rank, call)


def _judge_mean(played, seen, number, mean, totals):
    rank, result = seen.rank, seen.calls[number].result
    try:
        got = float(result)
    except (TypeError, ValueError, RuntimeError):
        raise played.wrong("no-mean", rank, got=result, fact="It must return one number.") from None
    # The sums are exact, also in float32. What may round are the means and weights of w ranks.
    num_roundings = played.case.world_size + 3
    if abs(got - mean) <= num_roundings * torch.finfo(torch.float32).eps * mean:
        return
    mistake = _mean_mistake(played, seen, number, got, totals)
    both = {"got": result, "expected": mean}
    fact = f"Step {number + 1} goes by another number. The sums of losses are {totals}."
    raise played.wrong(mistake, rank, **both, fact=fact)


def _mean_mistake(played, seen, number, got, totals):
    samples, rank = played.case["samples"], seen.rank
    means = [total / max(count, 1) for total, count in zip(totals, samples, strict=True)]
    filled = [mean for mean, count in zip(means, samples, strict=True) if count]
    shared = [
        ("worst-rank", max(means)),
        ("worst-rank", min(filled)),
        ("mean-of-means", sum(means) / len(means)),
        ("mean-of-means", sum(filled) / len(filled)),
        ("not-a-mean", sum(totals)),
        ("not-a-mean", sum(totals) / len(totals)),
        ("not-a-mean", sum(means)),
        *(("one-rank", mean) for mean in means),
    ]
    own = [("alone", means[rank]), ("not-a-mean", totals[rank])]
    if len({other.kept[number]["rate"] for other in played.seen}) == 1 and any(
        event.is_communication for event in seen.calls[number].events
    ):
        own = [("rate-only", one) for _, one in own]
    is_alike = len({repr(other.calls[number].result) for other in played.seen}) == 1
    names = shared if is_alike else [*own, *shared]
    return next((name for name, one in names if math.isclose(got, one, rel_tol=1e-5)), "values")


def _judge_schedule(played, seen, number, expected, totals):
    got, rank = seen.kept[number], seen.rank
    if got == expected:
        return
    others = {other.kept[number]["steps"] for other in played.seen}
    fact = f"After {number + 1} calls the schedule has made {got['steps']} steps."
    if got["steps"] < number + 1:
        mistake = "one-steps" if len(others) > 1 else "not-stepped"
        raise played.wrong(mistake, rank, fact=fact)
    if got["steps"] > number + 1:
        raise played.wrong("stepped-twice", rank, fact=fact)
    if not math.isclose(got["best"], expected["best"], rel_tol=1e-5):
        fact = "What is returned is right, but the schedule was fed with another number."
        both = {"got": got["best"], "expected": expected["best"]}
        raise played.wrong("fed-otherwise", rank, **both, fact=fact)
    if got["rate"] != expected["rate"]:
        both = {"got": got["rate"], "expected": expected["rate"]}
        raise played.wrong("rate", rank, **both, fact="The rate is not the one expected.")


def _judge_message(played, rank, call):
    events = [event for event in call.events if event.is_communication]
    if len(events) > 1:
        names = ", ".join(event.name for event in events)
        fact = f"A step makes {len(events)} calls ({names}); 1 would do."
        raise played.wrong("cost", rank, fact=fact)
    for event in events:
        if event.input_bytes > MESSAGE_BYTES:
            fact = f"A step sends {event.input_bytes} bytes; {MESSAGE_BYTES} would do."
            raise played.wrong("bytes", rank, fact=fact)


def _draw_rates(played):
    names = [f"step {number + 1}" for number in range(NUM_STEPS)]
    rates = [[f"{noted['rate']:g}" for noted in seen.kept] for seen in played.seen]
    return holdings_picture(names, [dict(zip(names, row, strict=True)) for row in rates])


plateau_step = Task(
    number="07.4",
    name="plateau_step",
    cases=_cases_plateau,
    act=_act_plateau,
    judge=_judge_plateau,
    ok="one collective of at most 16 bytes a step, the same rates on all ranks",
    draw=_draw_rates,
    hints=(
        "Schedules that get the same number at each step do the same at each step. Which number "
        "is fair to all samples?",
        "The mean over all samples is the sum of all losses by the number of all samples. Both "
        "are sums over ranks.",
        "Two sums need one message: put both numbers into one tensor.",
        "both = torch.tensor([total, num_samples], dtype=torch.float64, device=rank_device()); "
        "dist.all_reduce(both); then divide, feed the schedule, and return what you fed.",
    ),
    mistakes={
        "alone": "Each rank goes by its own loss, so their rates part. Let ranks talk first.",
        "rate-only": "Equal rates are not enough: the schedules still remember different losses. "
        "Agree on the loss, and each schedule finds the rate.",
        "one-rank": "One rank's loss decides. The samples of the others must count too.",
        "mean-of-means": "Ranks have unequally many samples: weigh them, or add up sums and "
        "divide once.",
        "worst-rank": "The mean over all samples is wanted, not the best or the worst rank.",
        "not-a-mean": "Divide the sum of all losses by the number of all samples, once.",
        "no-mean": "Return the mean as a float.",
        "nothing": "Return the mean that you fed to the schedule.",
        "not-stepped": "Call schedule.step(mean).",
        "one-steps": "Every rank has a schedule and an optimizer of its own: each must step.",
        "stepped-twice": "Call schedule.step once for each call.",
        "fed-otherwise": "Feed the schedule with the same number that you return.",
        "rate": "Leave the rate to the schedule.",
        "cost": "Both numbers fit into one tensor, and so into one collective.",
        "bytes": "Two numbers are enough: a sum and how many samples it is over.",
        "raised": "The line that is named is yours. A rank may have no samples at all: then it "
        "cannot divide by its own number.",
        "deadlock": "A rank without samples still makes the call: its sum and its number are 0.",
        "values": "Take two ranks, one with 1 sample and one with 3, and go through your lines.",
    },
    warm_up=first_ddp,  # the first optimizer imports the same
)
