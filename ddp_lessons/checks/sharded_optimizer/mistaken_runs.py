"""
Which usual mistake explains the parameters that an answer has left.
"""

import torch

from ddp_lessons.checks.kit.comparing import find_difference
from ddp_lessons.checks.sharded_optimizer.plain_runs import is_near, params_of, plain_run


def _first_off(view):
    """
    Return (number, what came, what is right, slack) of the first entry that is off; None: none is.
    """
    for number, (name, right) in enumerate(view.expected.items() if view.is_off else ()):
        if find_difference(view.got[name], right, view.most_off[name]):
            return number, view.got[name], right, view.most_off[name]
    return None


def goes_by(*ways):
    """
    Return what tells whether the first entry that is off is as one optimizer leaves it by a way.
    """

    def shows(view):
        number, got, right, slack = _first_off(view) or (0, [], [], 0)
        # In some cases a mistake changes nothing: there it is not the one that was made.
        return bool(got) and any(
            is_near(got, other, slack) and not is_near(other, right, slack)
            for other in (plain_run(view.case, **way)[number] for way in ways)
        )

    return shows


def takes_no_mean(view):
    """
    Tell whether a rank stepped by the sum of gradients, or by one rank's own.
    """
    ranks = range(view.case.world_size)
    own = [[{"mean": rank, "only": only} for rank in ranks] for only in (None, "closure")]
    if goes_by({"mean": "sum"}, *own[0], *own[1])(view):
        return True
    number, got, _, slack = _first_off(view) or (0, [], [], 0)
    return bool(got) and any(
        _each_number_is_of(got, [plain_run(view.case, **way)[number] for way in ways], slack)
        for ways in own
    )


def stays_behind(view):
    """
    Tell whether numbers are as before an entry, or right on another rank.
    """
    found = _first_off(view)
    if found is None:
        return False
    number, got, right, slack = found
    before = view.kept["params"][number - 1] if number else params_of(view.case)
    rows = [seen.kept["params"][number] for seen in view.case_result.seen]
    is_elsewhere = any(is_near(row, right, slack) for row in rows)
    return is_elsewhere or _each_number_is_of(got, [before, right], slack)


def _each_number_is_of(got, others, slack):
    for place, one in enumerate(got):
        fits = torch.zeros(one.shape, dtype=torch.bool)
        for other in others:
            fits |= (one - other[place]).abs() <= slack
        if not bool(fits.all()):
            return False
    return True
