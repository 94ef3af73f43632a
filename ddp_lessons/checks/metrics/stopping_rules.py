"""
The stopping rules of task 12.4, and wrong rules that an answer may follow.
"""

import math

PATIENCE, MIN_DELTA = 3, 0.5


def decisions(
    means,
    flags,
    *,
    delta=MIN_DELTA,
    edge=False,
    over=0,
    nan="bad",
    best="better",
    once=False,
):
    """
    Yield (stop, best, bad epochs) for each call, by the task's rules or by wrong ones.

    Args:
        means: The loss in each call.
        flags: Whether time is up, in each call.
        delta: By how much a loss must be below the best one to be better.
        edge: Whether a loss is also better if it is below the best one by exactly `delta`.
        over: Number of calls by which the patience is longer.
        nan: How a nan counts: "bad", "better" or "skipped"; or "not worse": then any loss that is
            compared with a nan is better, too.
        best: Which loss becomes the best: a "better" one, a "lower" one, or always the "last".
        once: Whether it stops only in the call in which the patience ends, and in no later one.
    """
    lowest, bad = math.inf, 0
    for mean, flag in zip(means, flags, strict=True):
        is_nan = math.isnan(mean)
        is_better = mean < lowest - delta or (edge and mean <= lowest - delta)
        if is_nan:
            is_better = nan in ("better", "not worse")
        elif nan == "not worse":
            is_better = not mean >= lowest - delta
        if is_better:
            bad = 0
        elif not (is_nan and nan == "skipped"):
            bad += 1
        takes = {"better": is_better, "lower": mean < lowest, "last": True}[best]
        if takes:
            lowest = mean
        is_over = bad == PATIENCE + over if once else bad >= PATIENCE + over
        yield is_over or flag, lowest, bad


RULES: dict[str, tuple[dict, ...]] = {
    "min-delta": ({"delta": 0.0}, {"edge": True}, {"delta": -MIN_DELTA}),
    "patience": ({"over": 1}, {"over": -1}, {"once": True}),
    "nan": (
        {"nan": "better"},
        {"nan": "skipped"},
        {"nan": "not worse"},
        {"nan": "better", "best": "last"},
    ),
    "best": ({"best": "lower"}, {"best": "last"}),
}
