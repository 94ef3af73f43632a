"""
Task 07.4: a plateau schedule that all ranks agree on.

On each rank: `_act`; in both: `_totals`, `_counts`, `_noted`. In the kernel: the rest.
"""

import math

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ddp_lessons.checks.accumulation.training import number_of
from ddp_lessons.checks.kit import Case, Task, generator
from ddp_lessons.checks.kit.shared.warm_up import first_ddp
from ddp_lessons.pictures import holdings_picture

RATE, FACTOR, PATIENCE, NUM_STEPS = 0.8, 0.5, 1, 6

SETTINGS = ("mode", "factor", "patience", "threshold", "cooldown")

MESSAGE_BYTES = 16  # two float64 numbers

_PARTS = {
    "a millionth as large": 2.0**-23,
    "a million times as large": 2.0**17,
    "of many digits": 1 / 7,
}
_USUAL_PART, _NAN_STEP = 2.0**-3, 2


def _cases(draw):
    yield Case(4, {"samples": [5, 1, 3, 2]}, seed=4)
    for world_size in (1, 2, 3):
        samples = [draw.randint(1, 9) for _ in range(world_size)]
        yield Case(world_size, {"samples": samples})
    samples = [0, draw.randint(1, 4), draw.randint(5, 9)]
    yield Case(3, {"samples": samples, "loss of 0 on rank": 2})
    samples = [draw.randint(1, 9) for _ in range(2)]
    yield Case(2, {"samples": samples, "losses": "a millionth as large"})
    # The last bits of these sums depend on the order of adding, in 49 draws of 50.
    samples = [draw.randint(1, 9) for _ in range(4)]
    for _ in range(3):
        yield Case(4, {"samples": samples, "losses": "of many digits"})
    data = {"samples": samples[:2], "losses": "a million times as large"}
    yield Case(2, {**data, "nan on rank": draw.randint(0, 1)})


def _totals(case, rank):
    # Return the sum of a rank's losses at each step: mostly whole eighths, so that sums are exact.
    means = torch.randint(1, 240, (NUM_STEPS,), generator=generator(case, rank))
    if rank == case.data.get("loss of 0 on rank"):
        means[1] = 0  # its samples still count
    part = _PARTS.get(case.data.get("losses"), _USUAL_PART)
    pairs = zip(means.tolist(), _counts(case, rank), strict=True)
    totals = [mean * num * part for mean, num in pairs]
    if rank == case.data.get("nan on rank"):
        totals[_NAN_STEP] = math.nan
    return totals


def _counts(case, rank):
    # Return the number of samples at each step, one more at every second one. 0 stays 0.
    num_samples = case["samples"][rank]
    return [num_samples and num_samples + step % 2 for step in range(NUM_STEPS)]


def _act(context, plateau_step):
    weight = torch.zeros(1, device=context.device, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=RATE)
    schedule = ReduceLROnPlateau(optimizer, factor=FACTOR, patience=PATIENCE)
    noted = []
    both = (of(context.case, context.rank) for of in (_totals, _counts))
    for total, num_samples in zip(*both, strict=True):
        context.call(plateau_step, schedule, total, num_samples)
        noted.append(_noted(optimizer, schedule))
    return noted


def _noted(optimizer, schedule):
    rate = optimizer.param_groups[0]["lr"]
    state = schedule.state_dict()
    settings = {name: state[name] for name in SETTINGS}
    best = float(state["best"])
    return {"rate": rate, "steps": state["last_epoch"], "best": best, "settings": settings}


def _right_plateau(metrics):
    # Return the notes of one process that has all samples.
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=RATE)
    schedule = ReduceLROnPlateau(optimizer, factor=FACTOR, patience=PATIENCE)
    noted = []
    for metric in metrics:
        schedule.step(metric)
        noted.append(_noted(optimizer, schedule))
    return noted


def _judge(case_result):
    case = case_result.case
    totals = [_totals(case, rank) for rank in range(case.world_size)]
    counts = [_counts(case, rank) for rank in range(case.world_size)]
    steps = list(zip(zip(*totals, strict=True), zip(*counts, strict=True), strict=True))
    means = [sum(total) / sum(count) for total, count in steps]
    right = _right_plateau(means)
    for number, (mean, step, expected) in enumerate(zip(means, steps, right, strict=True)):
        for seen in case_result.seen:
            _judge_mean(case_result, seen, number, mean, *step)
        for seen in case_result.seen:
            _judge_schedule(case_result, seen, number, expected, totals)
        _judge_bits(case_result, number)
    for seen in case_result.seen:
        for call in seen.calls:
            _judge_message(case_result, seen.rank, call)


def _judge_mean(case_result, seen, number, mean, totals, counts):
    rank, result = seen.rank, seen.calls[number].result
    if number_of(result) is None:
        raise case_result.wrong("no-mean", rank, got=result, fact="It must return one number.")
    # Losses, sums, means and weights of w ranks may be rounded, in float32 at the worst.
    most_off = 2 * (case_result.case.world_size + 3) * torch.finfo(torch.float32).eps * mean
    numbers = [number_of(other.calls[number].result) for other in case_result.seen]
    are_right = [one is not None and _is_near(one, mean, most_off) for one in numbers]
    if are_right[rank]:
        return
    if math.isnan(mean):
        fact = (
            f"Call {number + 1}: a sum of losses is nan, and the function returns "
            f"{numbers[rank]:g}."
        )
        raise case_result.wrong("hidden", rank, fact=fact)
    mistake = _mean_mistake(case_result, seen, number, numbers[rank], totals, counts)
    if math.isclose(seen.output[number]["best"], mean, rel_tol=1e-5):
        mistake = "fed-otherwise"
    elif any(are_right) and any(event.is_communication for event in seen.calls[number].events):
        mistake = "not-everywhere"
    both = {"got": result, "expected": mean}
    fact = (
        f"Call {number + 1} returns a wrong mean. The sums of losses are {list(totals)}, and the "
    )
    fact += f"numbers of samples are {list(counts)}."
    raise case_result.wrong(mistake, rank, **both, fact=fact)


def _is_near(got, mean, most_off):
    return abs(got - mean) <= most_off or (math.isnan(got) and math.isnan(mean))


def _judge_bits(case_result, number):
    numbers = [number_of(seen.calls[number].result) for seen in case_result.seen]
    for rank, one in enumerate(numbers):
        if repr(one) != repr(numbers[0]):
            fact = (
                f"Call {number + 1}: its mean differs from that of rank 0, in the last bits only."
            )
            raise case_result.wrong("apart", rank, fact=fact)


def _mean_mistake(case_result, seen, number, got, totals, counts):
    rank, num_samples = seen.rank, sum(counts)
    means = [total / max(count, 1) for total, count in zip(totals, counts, strict=True)]
    filled = [mean for mean, count in zip(means, counts, strict=True) if count]
    mean = sum(totals) / num_samples
    first_calls = range(number + 1)
    so_far = [
        sum(of(case_result.case, one)[call] for one in range(len(totals)) for call in first_calls)
        for of in (_totals, _counts)
    ]
    shared = [
        ("kept", so_far[0] / so_far[1]),
        ("kept", so_far[0] / num_samples),
        ("worst-rank", max(means)),
        ("worst-rank", min(filled)),
        ("mean-of-means", sum(means) / len(means)),
        ("mean-of-means", sum(filled) / len(filled)),
        ("not-a-mean", sum(totals)),
        ("not-a-mean", sum(totals) / len(totals)),
        ("not-a-mean", sum(means)),
        ("not-a-mean", sum(totals) / sum(max(count, 1) for count in counts)),
        *(("one-rank", mean) for mean in means),
        ("old-count", sum(totals) / sum(case_result.case["samples"])),  # of the first call
        *(("rounded", float(one)) for one in (round(mean), math.floor(mean), math.ceil(mean))),
        *(("rounded", round(mean, digits)) for digits in range(9)),
        ("rounded", sum(map(math.floor, totals)) / num_samples),
        ("rounded", sum(map(round, totals)) / num_samples),
    ]
    own = [("alone", means[rank]), ("not-a-mean", totals[rank])]
    if len({other.output[number]["rate"] for other in case_result.seen}) == 1 and any(
        event.is_communication for event in seen.calls[number].events
    ):
        own = [("rate-only", one) for _, one in own]
    is_alike = len({repr(other.calls[number].result) for other in case_result.seen}) == 1
    names = shared if is_alike else [*own, *shared]
    found = [name for name, one in names if math.isclose(got, one, rel_tol=1e-5)]
    if not found and math.isclose(got, mean, rel_tol=0.01):
        found = ["rounded"]
    return found[0] if found else "values"


def _judge_schedule(case_result, seen, number, expected, totals):
    got, rank = seen.output[number], seen.rank
    if got == expected:
        return
    others = {other.output[number]["steps"] for other in case_result.seen}
    fact = f"After call {number + 1}, the schedule's number of steps is {got['steps']}."
    if got["steps"] < number + 1:
        mistake = "one-steps" if len(others) > 1 else "not-stepped"
        raise case_result.wrong(mistake, rank, fact=fact)
    if got["steps"] > number + 1:
        raise case_result.wrong("stepped-twice", rank, fact=fact)
    for name, wanted in expected["settings"].items():
        if got["settings"][name] != wanted:
            fact = f"The schedule's {name} was {wanted}, and is {got['settings'][name]}."
            raise case_result.wrong("rate", rank, fact=fact)
    if not math.isclose(got["best"], expected["best"], rel_tol=1e-5):
        fact = "The returned mean is right, but the schedule got another number."
        both = {"got": got["best"], "expected": expected["best"]}
        raise case_result.wrong("fed-otherwise", rank, **both, fact=fact)
    if got["rate"] != expected["rate"]:
        both = {"got": got["rate"], "expected": expected["rate"]}
        raise case_result.wrong(
            "rate", rank, **both, fact="The learning rate is not the expected one."
        )


def _judge_message(case_result, rank, call):
    events = [event for event in call.events if event.is_communication]
    if len(events) > 1:
        names = ", ".join(event.name for event in events)
        fact = f"A step makes {len(events)} calls ({names}); 1 is enough."
        raise case_result.wrong("cost", rank, fact=fact)
    for event in events:
        if event.input_bytes > MESSAGE_BYTES:
            fact = f"A step sends {event.input_bytes} bytes; {MESSAGE_BYTES} are enough."
            raise case_result.wrong("bytes", rank, fact=fact)


def _draw(case_result):
    names = [f"step {number + 1}" for number in range(NUM_STEPS)]
    rates = [[f"{noted['rate']:g}" for noted in seen.output] for seen in case_result.seen]
    return holdings_picture(names, [dict(zip(names, row, strict=True)) for row in rates])


plateau_step = Task(
    number="07.4",
    name="plateau_step",
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="one collective of at most 16 bytes a step, the same rates on all ranks",
    draw=_draw,
    hints=(
        "Schedules that get the same number in each step choose the same learning rates. In which "
        "number does each sample count the same?",
        "The mean over all samples is the sum of all losses, divided by the number of all samples. "
        "Both numbers are sums over ranks.",
        "Two sums need only one message: put both numbers into one tensor.",
        "both = torch.tensor([total, num_samples], dtype=torch.float64, device=rank_device()); "
        "dist.all_reduce(both); then divide, feed the schedule with the mean, and return the mean.",
    ),
    mistakes={
        "alone": "Each rank uses its own loss, so the ranks get different learning rates. Combine "
        "the losses first.",
        "rate-only": "Equal learning rates are not enough: the schedules still remember different "
        "losses. Give all schedules the same loss, and each schedule finds the rate.",
        "one-rank": "Only one rank's loss counts. The samples of the other ranks must count, too.",
        "mean-of-means": "Ranks have different numbers of samples: add up the sums of losses and "
        "the numbers of samples, and divide once.",
        "worst-rank": "Compute the mean over all samples, not that of the best or the worst rank.",
        "old-count": "num_samples may change from call to call: send it in each call.",
        "hidden": "A loss of nan is a fault of the run. The mean must be nan, too.",
        "apart": "Ranks that add in different orders round differently, and a schedule that "
        "compares the results may choose another rate. Give all ranks the same number.",
        "not-a-mean": "Divide the sum of all losses by the number of all samples, once.",
        "no-mean": "Return the mean as a float or as a tensor of one number.",
        "rounded": "Round neither the mean nor the numbers that you send. float32 and float64 keep "
        "enough digits; integers and float16 do not.",
        "nothing": "Return the mean with which you feed the schedule.",
        "not-stepped": "Call schedule.step(mean) in every call, whether the mean is better or "
        "worse.",
        "not-everywhere": "Some ranks have the mean, and others do not. reduce gives a sum to one "
        "rank only, and all_reduce to all ranks.",
        "one-steps": "Every rank has its own schedule and its own optimizer: each schedule must "
        "make a step.",
        "stepped-twice": "Call schedule.step only once in each call.",
        "fed-otherwise": "Feed the schedule with the number that you return.",
        "rate": "Only the schedule may change the learning rate. Leave the schedule's settings as "
        "they are.",
        "cost": "Both numbers fit into one tensor, and so into one collective.",
        "bytes": "Two numbers are enough: the sum of the losses and the number of samples.",
        "raised": "The message names a line of yours. A rank may have no samples: then it cannot "
        "divide by its own number of samples.",
        "deadlock": "Every rank makes the same call in the default group, also a rank without "
        "samples, whose sum and number are 0.",
        "values": "Take two ranks, one with 1 sample and one with 3, and go through your lines. In "
        "the next call, the ranks may have other numbers of samples.",
    },
    warm_up=first_ddp,  # a first optimizer imports the same modules
)
