"""
The rules of task 12.4, and others that an answer may go by.
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
    Yield (stop, best, bad epochs) for each call, by the task's rules or by others.

    Args:
        means: The loss that decides, call by call.
        flags: Whether somebody's time is up, call by call.
        delta: By how much a loss must be below the best.
        edge: Whether exactly as much will do.
        over: By how many calls patience is longer.
        nan: What a loss is that is not a number: "bad", "better" or "skipped"; or "not worse",
            which makes better all that is compared with it, too.
        best: Whether the best is noted if "better", "lower", or it is the "last".
        once: Whether it stops in the call in which patience is at its end, and in no later one.
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
