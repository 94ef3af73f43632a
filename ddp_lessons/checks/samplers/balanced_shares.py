"""
Task 04.4: balanced shares.

On each rank: `_act`. In the kernel: the rest.
"""

import math
from fractions import Fraction

import torch

from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.checks.samplers.shares import as_list, judge_cost
from ddp_lessons.pictures import timeline_picture

_SPEED_BYTES = 8

_FEW = 10_000  # so few samples that distributing them one by one takes no time

_TO_ROUND = (
    # Each row tells some wrong ways to round from right ones. Where exact shares are whole, the
    # speeds add up to a power of 2, so that all arithmetic is exact. Each of the first three rows
    # finds just one of three mistakes: to give all that rounding leaves over to the fastest rank,
    # and two ways to distribute sample after sample.
    ((5.0, 5.0, 6.0, 5.0), 2131),
    ((12.0, 1.0, 1.0, 1.0), 161),
    ((12.0, 1.0, 1.0, 1.0), 154),
    ((30.0, 1.0, 1.0, 1.0), 16),
    ((11.0, 2.0, 2.0, 2.0), 3),
    ((3.0, 3.0, 3.0, 1.0), 2),
    ((299.0, 299.0, 299.0, 103.0), 999),
    ((1.0, 2.0, 1.0), 2),
    ((1.0, 1.0, 2.0), 2),
    ((2.0, 3.0, 3.0), 4),
    ((1.0, 1.0, 2.0), 6),
    ((1.0, 5.0, 5.0, 5.0), 8),
    ((1.0, 2.0, 2.0, 2.0), 5),
    ((1.0, 6.0, 1.0, 5.0), 21),
    ((5.0, 7.0), 0),
    # With so many samples, digits of a speed that were rounded away change the shares.
    ((1.0, 2.0, 4.0), 100_003),
    ((1.00049, 2.0, 4.0), 100_003),
)


def _cases(draw):
    yield Case(4, {"speeds": [100.0, 200.0, 50.0, 150.0], "num_samples": 122}, seed=0)
    for fixed, num_samples in _TO_ROUND:
        yield Case(len(fixed), {"speeds": list(fixed), "num_samples": num_samples})
    yield Case(1, {"speeds": [draw.uniform(5, 50)], "num_samples": draw.randint(10, 99)})
    speeds = [draw.uniform(2.6, 2.9), draw.uniform(1.0, 1.2)]
    yield Case(2, {"speeds": speeds, "num_samples": draw.randint(101, 199)})
    speeds = [draw.uniform(0.1, 0.9)] * 3
    yield Case(3, {"speeds": speeds, "num_samples": 3 * draw.randint(20, 90) + 2})
    speeds = draw.sample([draw.uniform(100 * k + 5, 100 * k + 70) for k in range(4)], 4)
    yield Case(4, {"speeds": speeds, "num_samples": draw.randint(500, 2000)})


def _act(context, balanced_shares):
    backend = torch.distributed.get_backend()
    device = context.device if backend == "nccl" else "cpu"  # Gloo gathers from the CPU's memory
    speed = torch.tensor([context["speeds"][context.rank]], dtype=torch.float64, device=device)
    context.call(balanced_shares, speed, context["num_samples"])


def _judge(case_result):
    num_samples, num_ranks = case_result.case["num_samples"], case_result.case.world_size
    speeds = [Fraction(speed) for speed in case_result.case["speeds"]]
    shares, exact = case_result.results[0], _proportion(num_samples, speeds)
    for rank, got in enumerate(case_result.results):
        is_list = isinstance(got, list | tuple) and len(got) == num_ranks
        if not is_list or any(type(share) is not int for share in got):
            fact = f"It must return a list of {num_ranks} whole numbers, a share for each rank."
            raise case_result.wrong("no-list", rank, got=got, fact=fact)
    if num_ranks > 1 and not any(case_result.call_names):
        fact = "No rank has sent its speed to another rank."
        mistake = "alone" if case_result.call == "first" else "kept"
        raise case_result.wrong(mistake, 0, got=shares, fact=fact)
    for rank, got in enumerate(case_result.results):
        if list(got) != list(shares):
            fact = f"Rank 0 returned other shares: {shares}."
            raise case_result.wrong("not-agreed", rank, got=got, fact=fact)
    if sum(shares) != num_samples or not _is_near(shares, exact):
        mistake, fact = _balanced_mistake(shares, exact, speeds, num_samples)
        told = [round(float(share), 2) for share in exact]
        fact += f" In proportion to the speeds they would be {told}, before rounding."
        raise case_result.wrong(mistake, 0, got=shares, fact=fact)
    judge_cost(case_result, "The shares are", _SPEED_BYTES * num_ranks)


def _proportion(num_samples, weights):
    return [num_samples * weight / sum(weights) for weight in weights]


def _is_near(shares, exact):
    return all(abs(share - part) < 1 for share, part in zip(shares, exact, strict=True))


def _balanced_mistake(shares, exact, speeds, num_samples):
    rounded = [[Fraction(int(speed)) for speed in speeds]]
    if num_samples > _FEW:
        rounded += [[round(speed, digits) for speed in speeds] for digits in range(1, 5)]
    for used in rounded:
        if any(used) and used != speeds and _is_near(shares, _proportion(num_samples, used)):
            return "whole-speeds", "The speeds were rounded before they were used."
    if num_samples > _FEW:
        parts = [[round(part / num_samples, digits) for part in exact] for digits in range(2, 5)]
        if any(_is_near(shares, [num_samples * part for part in row]) for row in parts):
            return "cut-early", "The quotient of a speed and the sum of speeds was rounded."
    differ = max(exact) - min(exact) > 2
    if differ and max(shares) - min(shares) <= 1:
        return "equal", "All ranks have equal shares."
    if differ and _is_near(shares, _proportion(num_samples, [1 / speed for speed in speeds])):
        return "inverted", "The slower a rank is, the more it gets."
    if min(shares) > 0 and min(exact) < Fraction(1, 2):
        return "at-least-one", "Every rank gets at least one sample."
    missing, percents = num_samples - sum(shares), _go_by_percents(shares, speeds, num_samples)
    if missing and percents:
        return "cut-early", percents
    if missing >= len(shares):
        fact = (
            f"The shares lack {missing} samples; rounding down can lose {len(shares) - 1} at most."
        )
        return "cut-early", fact
    if -missing >= len(shares):
        fact = f"The shares are {-missing} samples too many; rounding alone cannot add so many."
        return "no-parts", fact
    if missing:
        return "sum", f"The shares add up to {sum(shares)}, not to {num_samples}."
    if min(shares) < 0:
        return "negative", f"Rank {shares.index(min(shares))} would get {min(shares)} samples."
    if differ and _is_near(sorted(shares), sorted(exact)):
        return "order", "The shares are those of other ranks."
    for first in (Fraction(0), Fraction(1, 2), Fraction(1)) if num_samples <= _FEW else ():
        if list(shares) == _one_by_one(num_samples, speeds, first):
            return "one-by-one", "A share is off by a whole sample or more."
    rest = num_samples - len(shares)
    if differ and _is_near(shares, [1 + part for part in _proportion(rest, speeds)]):
        return "at-least-one", f"Only {rest} samples are distributed in proportion to the speeds."
    if percents:
        return "cut-early", percents
    off = [rank for rank, share in enumerate(shares) if abs(share - exact[rank]) >= 1]
    for rank in off:
        if exact[rank].denominator == 1:
            return "whole-share", f"Without any rounding the share of rank {rank} is {exact[rank]}."
    down = [math.floor(part) for part in exact]
    if sum(map(int.__ne__, shares, down)) == 1:
        return "rest-to-one", f"Rank {off[0]} got all samples that rounding down left over."
    return "values", f"The share of rank {off[0]} is off by a whole sample or more."


def _go_by_percents(shares, speeds, num_samples):
    """
    Return a sentence if shares follow from whole percents of all speeds, else "".
    """
    for to_whole in (round, math.floor):
        percents = [Fraction(to_whole(100 * speed / sum(speeds))) for speed in speeds]
        for whole in (Fraction(100), sum(percents)):
            parts = [num_samples * percent / (whole or 1) for percent in percents]
            if _is_near(shares, parts) and not _is_near(parts, _proportion(num_samples, speeds)):
                return "They follow from speeds in whole percents."
    return ""


def _one_by_one(num_samples, speeds, first):
    """
    Return the shares if samples are distributed one by one, each to the earliest rank.

    The earliest rank is the one that first finishes the part `first` of the sample: 0, 0.5 or 1.
    """
    shares = [0] * len(speeds)
    for _ in range(num_samples):
        shares[min(range(len(speeds)), key=lambda r: (shares[r] + first) / speeds[r])] += 1
    return shares


def _draw(case_result):
    speeds, num_samples = case_result.case["speeds"], case_result.case["num_samples"]
    epochs, shares = [[num_samples / len(speeds)] * len(speeds)], as_list(case_result.results[0])
    if len(shares) == len(speeds) and all(isinstance(one, int | float) for one in shares):
        epochs.append([max(0, one) for one in shares])
    tracks, begin = [[] for _ in speeds], 0.0
    for shares in epochs:
        taken_s = [share / speed for share, speed in zip(shares, speeds, strict=True)]
        end = begin + max(taken_s)
        for track, own_s, share in zip(tracks, taken_s, shares, strict=True):
            track.append(("compute", begin, begin + own_s, f"{share:g}"))
            if begin + own_s < end:
                track.append(("waiting", begin + own_s, end))
        begin = end
    axis = "seconds by these speeds: first an epoch with equal shares, then one with yours"
    return timeline_picture(tracks, axis)


balanced_shares = Task(
    number="04.4",
    name="balanced_shares",
    twice=True,
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="no share off by a whole sample, 1 collective",
    draw=_draw,
    hints=(
        "A rank knows only its own speed. The shares depend on the speeds of all ranks, so gather "
        "these first, by one collective.",
        "The exact share of rank r is num_samples * speeds[r] / sum(speeds). If you round each "
        "share on its own, the sum may be too small or too large.",
        "Round all shares down. Fewer samples are left over than there are ranks: give one each to "
        "the ranks that lost most by rounding.",
        "sorted(range(world_size), key=lambda r: shares[r] - exact[r]) lists the ranks: first the "
        "rank that lost most by rounding down.",
    ),
    mistakes={
        "nothing": "Return the list of all shares, on every rank.",
        "no-list": "Return a list of whole numbers, as int(x) makes them: one share for each "
        "rank, in rank order.",
        "alone": "The argument speed is this rank's own. Gather the speeds of all ranks.",
        "not-agreed": "Every rank must compute the same shares: from the speeds of all ranks, and "
        "with the same choice between two ranks that lost equally much by rounding.",
        "whole-speeds": "Gather the speeds as they are, in float64: they are seldom whole.",
        "equal": "A fast rank must get more samples than a slow one.",
        "inverted": "Speeds are samples per second, not seconds per sample: a larger number is "
        "faster.",
        "sum": "If each share is rounded on its own, the sum changes. Round all shares down, and "
        "then distribute the samples that are left.",
        "cut-early": "Round only once, at the end. Do not round the numbers from which the exact "
        "shares are computed, such as percents.",
        "no-parts": "Before rounding, the shares must already add up to num_samples: divide the "
        "rank's speed by the sum of all speeds.",
        "negative": "No share may be below 0. Round all shares down first, so that no rank has to "
        "give a sample back.",
        "order": "Return the shares in rank order: the element at index r belongs to rank r.",
        "one-by-one": "Start from the exact shares. Giving sample after sample to the rank that is "
        "free first, or has finished first, favours slow or fast ranks.",
        "at-least-one": "A share below 1 may become 0. If you give each rank one sample "
        "beforehand, the other ranks get too few.",
        "whole-share": "A share that is whole before rounding stays as it is. The samples that are "
        "left over go to ranks that lost by rounding down.",
        "values": "Each share must be the exact share, rounded down or up. Round all shares down, "
        "and give the samples that are left to the ranks that lost most.",
        "store": "Send the speeds by a collective, not through the store.",
        "rest-to-one": "Give the samples that are left over to several ranks, one sample each: "
        "first to the ranks that lost most by rounding.",
        "cost": "Gather the speeds in one call: one number a rank.",
        "raised": "The message names a line of yours. The tensors that all_gather fills need the "
        "dtype and the shape of speed.",
        "input-changed": "Gather into new tensors, and do not write into speed.",
    },
)
