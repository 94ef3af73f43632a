"""
Task 06.3: keep BatchNorm honest.

On each rank: `_act`, `_parts_of`. In the kernel: the rest.
"""

import copy

import torch
from torch import nn

from ddp_lessons.checks.ddp.pooled import STATISTICS, Pooled
from ddp_lessons.checks.kit import Case, Task, equal, normal_numbers
from ddp_lessons.checks.kit.on_rank.snapshots import plain
from ddp_lessons.pictures import holdings_picture

_MOST_POOL_CALLS = 2


def _cases(draw):
    yield Case(4, {"samples": [5, 9, 2, 7], "channels": 3, "centre": 0}, seed=0)
    for world_size, channels in ((1, 1), (2, draw.randint(4, 9)), (3, draw.randint(4, 9))):
        samples = draw.sample(range(2, 12), world_size)
        yield Case(world_size, {"samples": samples, "channels": channels, "centre": 0})
    samples = draw.sample(range(4, 12), 4)
    yield Case(4, {"samples": samples, "channels": 9, "centre": draw.randint(900, 1100)})


def _act(context, pool_statistics):
    num_samples, channels = context["samples"][context.rank], context["channels"]
    layer = nn.BatchNorm1d(channels, momentum=1.0).to(context.device)
    numbers = normal_numbers(context.case, context.rank, (num_samples, channels))
    layer((numbers + context["centre"] + context.rank).to(context.device))
    before, spare = _parts_of(layer), copy.deepcopy(layer)
    context.call(pool_statistics, layer, num_samples)
    pool_statistics(spare, num_samples)
    return {"before": before, "after": _parts_of(layer), "again": _parts_of(spare)}


def _parts_of(layer):
    # Return the statistics and what must stay: the number of batches, momentum, flags and so on.
    parts = {name: value for name, value in vars(layer).items() if not name.startswith("_")}
    names = (*STATISTICS, "num_batches_tracked")
    return plain(parts | {name: getattr(layer, name) for name in names})


def _judge(case_result):
    case = case_result.case
    kept = [seen.output for seen in case_result.seen]
    for rank, one in enumerate(kept):
        for when in ("after", "again"):
            _judge_kind(case_result, rank, one["before"], one[when])
    pooled = Pooled(case["samples"], [one["before"] for one in kept], case["centre"])
    for rank, one in enumerate(kept):
        are_right = [pooled.are_right(one[when]) for when in ("after", "again")]
        if not all(are_right) and not equal(one["after"], one["again"]):
            fact = "A second call, with an equal layer, gives other statistics."
            raise case_result.wrong("kept", rank, fact=fact)
    for rank in range(case.world_size):
        _judge_statistics(case_result, rank, kept, pooled)
    for rank, one in enumerate(kept):
        new = sorted(one["after"].keys() - one["before"].keys())
        if new:
            fact = f"The function leaves new attributes in the layer: {', '.join(new)}."
            raise case_result.wrong("left-changed", rank, fact=fact)
        for name, was in one["before"].items():
            if name not in STATISTICS and not equal(was, one["after"].get(name)):
                fact = f"The function has changed the layer's {name}."
                raise case_result.wrong("left-changed", rank, fact=fact)
    for rank, names in enumerate(case_result.call_names):
        if len(names) > _MOST_POOL_CALLS:
            fact = (
                f"The statistics are right, but the call made {len(names)} collectives; 2 are "
                "enough."
            )
            raise case_result.wrong("cost", rank, fact=fact)


def _judge_kind(case_result, rank, before, after):
    for name in STATISTICS:
        was, now = before[name], after[name]
        if not isinstance(now, torch.Tensor) or now.shape != was.shape:
            fact = f"{name} is not {tuple(was.shape)} any more."
            raise case_result.wrong("shape", rank, got=now, fact=fact)
        if now.dtype != was.dtype:
            fact = f"{name} is not {str(was.dtype).removeprefix('torch.')} any more."
            raise case_result.wrong("dtype", rank, got=now, fact=fact)


def _judge_statistics(case_result, rank, kept, pooled):
    after = kept[rank]["after"]
    if pooled.are_right(after):
        return
    mean, variance = (after[name] for name in STATISTICS)
    first = kept[0]["before"]
    means = {"got": mean, "expected": pooled.mean.float()}
    if len(kept) > 1 and all(equal(first, one["after"]) for one in kept):
        fact = "Every rank has the statistics that rank 0 had."
        raise case_result.wrong("rank-0", rank, **means, fact=fact)
    if all(equal(one["before"], one["after"]) for one in kept):
        raise case_result.wrong("unchanged", rank, **means, fact="The layer is as it was.")
    have_mean = [pooled.has_mean(one["after"]["running_mean"]) for one in kept]
    if any(have_mean) and not all(have_mean):
        fact = f"Rank {have_mean.index(True)} has the mean of all samples, and not every rank has."
        raise case_result.wrong("not-everywhere", have_mean.index(False), fact=fact)
    if not pooled.has_mean(mean):
        mistake, fact = pooled.how_mean(rank, mean)
        raise case_result.wrong(mistake, rank, **means, fact=fact)
    mistake, fact = pooled.how_variance(rank, variance)
    variances = {"got": variance, "expected": pooled.variance.float()}
    raise case_result.wrong(mistake, rank, **variances, fact=fact)


def _draw(case_result):
    rows = []
    for num_samples, seen in zip(case_result.case["samples"], case_result.seen, strict=True):
        cells = {"samples": str(num_samples)}
        for when in ("before", "after"):
            cells[f"mean {when}"] = f"{seen.output[when]['running_mean'][0]:.2f}"
            cells[f"variance {when}"] = f"{seen.output[when]['running_var'][0]:.2f}"
        rows.append(cells)
    names = ["samples", "mean before", "mean after", "variance before", "variance after"]
    return holdings_picture(names, rows)


pool_statistics = Task(
    number="06.3",
    name="pool_statistics",
    may_mutate=("buffers",),
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="2 collectives at most, and the statistics of all samples",
    draw=_draw,
    hints=(
        "Mean and variance follow from three sums: the number of samples, their sum, and the sum "
        "of their squared distances from the mean. all_reduce adds up sums of ranks.",
        "Let rank r have n_r samples. The sum of squared distances from its own mean is (n_r - 1) "
        "times its running_var. The distances from the common mean add n_r times the square of "
        "(its mean - the common mean).",
        "First sum n_r and n_r * mean_r over the ranks. Their quotient is the common mean. Then "
        "sum the squared distances from it. Compute in float64, which costs little here.",
        "spread = (n - 1) * variance + n * (own_mean - mean) ** 2; all_reduce it; running_var is "
        "spread / (total - 1). Write with copy_.",
    ),
    mistakes={
        "unchanged": "Write into the layer's own tensors: layer.running_mean.copy_(...).",
        "rank-0": "DDP leaves only the statistics of rank 0. Use those of every rank.",
        "not-everywhere": "Every rank needs the result. reduce gives it to one rank, and "
        "all_reduce to all ranks.",
        "unweighted": "Ranks have different numbers of samples. Weight each rank by its number, so "
        "that every sample counts the same.",
        "within-only": "The variance of all samples has a second part: the ranks' means differ "
        "from the common mean.",
        "biased": "running_var was divided by the number of samples minus 1. Multiply it by that "
        "number on each rank, and divide the sum by the number of all samples minus 1.",
        "own-count": "Ranks have different numbers of samples. Sum the numbers over the ranks, "
        "too.",
        "part-way": "The momentum is 1, so replace the old statistics. Do not mix them with the "
        "new ones.",
        "digits": "Add up in float32 or float64: half precision has 3 digits.",
        "distance-once": "The squared distance of a rank's mean counts once for each of the rank's "
        "samples.",
        "root": "running_var is a variance. The standard deviation is its square root.",
        "dtype": "Write into the layer's float32 tensors by copy_, and they stay float32.",
        "shape": "Both statistics must stay tensors of shape (C,).",
        "cancels": "With means near 1,000, squares are near 1,000,000, and float32 has 7 digits. "
        "Square distances from the mean, or use float64.",
        "cost": "Put the values of one sum into one tensor: one call for counts and sums, and one "
        "for the squared distances.",
        "deadlock": "All ranks must make the same calls, whatever their number of samples.",
        "left-changed": "Change running_mean and running_var, and nothing else of the layer.",
        "raised": "num_samples is a plain number, and a layer's statistics are tensors (C,).",
    },
    in_place=True,
    must_return=False,
)
