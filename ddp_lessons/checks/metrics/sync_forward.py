"""
Task 12.2: BatchNorm's forward, over the samples of all ranks.

On each rank: `_act`. In the kernel: the rest.
"""

from dataclasses import replace

import torch

from ddp_lessons.checks.kit import VALUES, Case, Expected, Mistake, Task
from ddp_lessons.checks.kit.on_rank.snapshots import plain, same_bits
from ddp_lessons.checks.metrics.one_layer import (
    NUM_CALLS,
    STATISTICS,
    Right,
    layer_of,
    means_of_means,
    other_scales,
    own_statistics,
)
from ddp_lessons.checks.metrics.op_costs import batch_of, fact_of_price, within
from ddp_lessons.pictures import holdings_picture


def _cases(draw):
    yield Case(4, {"samples": [5, 3, 4, 2], "channels": 3, "dtype": "float32"}, seed=0)
    channels = draw.randint(4, 6)
    for samples in ([draw.randint(4, 9)], [draw.randint(2, 4), draw.randint(6, 9)]):
        yield Case(len(samples), {"samples": samples, "channels": channels, "dtype": "float64"})
    samples = [draw.randint(3, 5), 0, 1]
    yield Case(3, {"samples": samples, "channels": channels, "dtype": "float32"})
    samples = [draw.randint(10, 15), draw.randint(4, 6)]
    data = {"samples": samples, "channels": channels, "dtype": "float32", "offset": 3000}
    yield Case(2, data)
    # In float64, sums in two orders are equal for most channels. Among many, some differ.
    samples = [draw.randint(2, 9) for _ in range(4)]
    yield Case(4, {"samples": samples, "channels": 64, "dtype": "float64"})


def _act(context, sync_forward):
    layer = layer_of(context.case).to(context.device)
    noted = []
    for call in range(NUM_CALLS):
        context.call(
            sync_forward, layer, batch_of(context.case, context.rank, call).to(context.device)
        )
        noted.append(plain({name: getattr(layer, name) for name in STATISTICS}))
    return noted


def _of_calls(case, what):
    return {f"call {number + 1}": what(Right(case, number)) for number in range(NUM_CALLS)}


def _expected(case, rank):
    dtype = getattr(torch, case["dtype"])

    def rounded(right):
        values = right.values(rank).items()
        return {name: one.to(dtype) if one.is_floating_point() else one for name, one in values}

    return _of_calls(case, rounded)


def _gave(view):
    pairs = zip(view.seen.calls, view.output, strict=True)
    return {
        f"call {number}": {"y": call.result, **noted}
        for number, (call, noted) in enumerate(pairs, start=1)
    }


def _gives_y(ys_of):
    """
    Return a `shows` that finds a y which is wrong and one of `ys_of(right, rank)`.
    """

    def shows(view):
        for number, (call, values) in enumerate(view.got.items() if view.is_off else ()):
            slack, y = view.most_off[call]["y"], values["y"]
            if y.shape != slack.shape or within(y, view.expected[call]["y"].double(), 2 * slack):
                continue
            right = Right(view.case, number)
            if any(within(y, other, 4 * slack) for other in ys_of(right, view.rank)):
                return f"{call.capitalize()} gives other numbers than one process would."
        return ""

    return shows


def _keeps_biased(view):
    # Find a running_var that was divided by N, or corrected by the rank's own number of samples.
    for number, (call, values) in enumerate(view.got.items() if view.is_off else ()):
        right, name = Right(view.case, number), "running_var"
        slack, m, own = view.most_off[call][name], right.layer.momentum, len(right.parts[view.rank])
        news = [right.biased] + ([right.biased * own / (own - 1)] if own > 1 else [])
        others = [(1 - m) * right.old[name] + m * new for new in news]
        is_right = within(values[name], view.expected[call][name].double(), 2 * slack)
        if not is_right and any(within(values[name], other, slack) for other in others):
            return f"After {call} running_var is not that of one process."
    return ""


def _loses_digits(view):
    if not view.is_off:
        return ""
    for call, values in view.got.items():
        y, expected = values["y"], view.expected[call]["y"].double()
        if y.shape == expected.shape and y.numel():
            off = (y.double() - expected).abs().max()
            is_lost = "offset" in view.case.data or bool(off < 2e-3 * expected.abs().max())
            if is_lost and not within(y, expected, 2 * view.most_off[call]["y"]):
                return f"{call.capitalize()} gives nearly the numbers of one process."
    return ""


def _is_nan(view):
    ys = [values["y"] for values in view.got.values()]
    is_far = "offset" in view.case.data  # lost digits may make a variance negative
    return view.is_off and not is_far and any(bool(y.isnan().any()) for y in ys)


def _is_unlike(view):
    first = view.case_result.seen[0].output
    pairs = zip(view.output, first, strict=True)
    return any(not same_bits(one[name], other[name]) for one, other in pairs for name in STATISTICS)


def _costs(view):
    most = 8 * (2 * view.case["channels"] + 1)
    return next(filter(None, (fact_of_price(call, most) for call in view.seen.calls)), "")


def _draw(case_result):
    names = ["samples", "mean of its own", "mean in the layer", "collectives"]
    rows = []
    for rank, (seen, called) in enumerate(
        zip(case_result.seen, case_result.call_names, strict=True)
    ):
        own = batch_of(case_result.case, rank)
        noted = seen.output[0]["running_mean"][0]
        told = [str(len(own)), f"{own[:, 0].mean():.2f}", f"{noted:.2f}", str(len(called) // 2)]
        rows.append(dict(zip(names, told, strict=True)))
    return holdings_picture(names, rows)


sync_forward = Task(
    number="12.2",
    name="sync_forward",
    cases=_cases,
    act=_act,
    ok="one collective, and what one process has, also far from 0",
    draw=_draw,
    hints=(
        "What must a rank tell the others so that all find the mean and the variance of all "
        "samples? Think of unequal numbers of samples, and of none.",
        "N, the sum of all x, and the sum of all squares: each is a sum over ranks. In one tensor "
        "they are one message. Or each rank's n, mean, and squares around it.",
        "The sums must be float64, or the variance of numbers far from 0 is lost. For y, the "
        "variance divides by N; for running_var by N - 1.",
        "own = torch.cat([count, x.double().sum(0), x.double().square().sum(0)]); "
        "dist.all_reduce(own); mean = sums / N; variance = squares / N - mean ** 2.",
    ),
    expected=Expected(
        _expected,
        most_off=lambda case, rank: _of_calls(case, lambda right: right.most_off(rank)),
        gave=_gave,
    ),
    mistakes=(
        Mistake(
            "dtype",
            "y has the dtype of x, whatever you compute it in. Write into the layer's buffers, in "
            "place, so that they keep their dtype.",
        ),
        Mistake(
            "nan",
            "A mean of no samples is nan, as some rank may have none, and so is all that it is "
            "added to: send sums and counts.",
            "Something is not a number.",
            shows=_is_nan,
        ),
        Mistake(
            "own-statistics",
            "These are the statistics of this rank's samples alone.",
            shows=_gives_y(own_statistics),
        ),
        Mistake(
            "mean-of-means",
            "A mean of ranks' means or variances weighs ranks alike, and leaves out how far their "
            "means are from each other. Add up sums and squares around 0, and divide once.",
            shows=_gives_y(means_of_means),
        ),
        Mistake(
            "unbiased",
            "y takes the variance that divides by N; only running_var takes N - 1.",
            shows=_gives_y(lambda right, rank: [right.y(rank, variance=right.unbiased)]),
        ),
        Mistake(
            "scale",
            "layer.eps is added to the variance, before the root. Then comes layer.weight, and "
            "then layer.bias.",
            shows=_gives_y(other_scales),
        ),
        Mistake(
            "digits",
            "Digits are lost. Make sums in float64: where the mean is far from 0, the variance is "
            "a small difference of large numbers.",
            shows=_loses_digits,
        ),
        Mistake(
            "running-biased",
            "For running_var, torch divides by N - 1. N is the number of samples of all ranks, "
            "not of this one.",
            shows=_keeps_biased,
        ),
        replace(
            VALUES,
            hint="Take two ranks with one channel, one with 1 sample and one with 3, and go "
            "through your lines with a pencil: y; running_mean and running_var, which move once in "
            "a call, by layer.momentum; and num_batches_tracked, which counts calls.",
            symptom="It has something else than one process with all samples.",
        ),
        Mistake(
            "not-alike",
            "All ranks must compute from the same bits, in the same order: a sum that begins with "
            "a rank's own part has other last digits on each rank.",
            "It has other bits in its running statistics than rank 0.",
            shows=_is_unlike,
        ),
        Mistake(
            "cost",
            "Count, sums and squares fit into one tensor of 2C + 1 numbers of 8 bytes, and so into "
            "one collective: no sample needs to travel.",
            shows=_costs,
        ),
        Mistake("left-changed", "Only the running statistics change. All else in the layer stays."),
        Mistake(
            "raised",
            "The line that is named is yours. A rank may have no samples, or one: then its own "
            "mean or variance is nan, and its sums are 0.",
        ),
        Mistake("deadlock", "Every rank makes the same call, one without samples too."),
    ),
    may_mutate=("buffers",),
)
