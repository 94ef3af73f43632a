"""
Functions that tell which common mistake explains the parameters after an answer's steps.
"""

import torch

from ddp_lessons.checks.kit.comparing import find_difference
from ddp_lessons.checks.sharded_optimizer.plain_runs import is_near, params_of, plain_run


def _first_off(view):
    """
    Return (number, got, right, slack) of the first entry of the script that is off, or None.
    """
    for number, (name, right) in enumerate(view.expected.items() if view.is_off else ()):
        if find_difference(view.got[name], right, view.most_off[name]):
            return number, view.got[name], right, view.most_off[name]
    return None


def goes_by(*ways):
    """
    Return a `shows` that tells whether the first entry that is off follows from one of `ways`.

    Each way is a dict of arguments of `plain_run`.
    """

    def shows(view):
        number, got, right, slack = _first_off(view) or (0, [], [], 0)
        # A mistake that changes nothing in this case cannot explain what is off.
        return bool(got) and any(
            is_near(got, other, slack) and not is_near(other, right, slack)
            for other in (plain_run(view.case, **way)[number] for way in ways)
        )

    return shows


def takes_no_mean(view):
    """
    Tell whether a rank stepped by the sum of all gradients, or by one rank's own gradient.
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
    Tell whether the first entry that is off left numbers unchanged, or is right on another rank.
    """
    found = _first_off(view)
    if found is None:
        return False
    number, got, right, slack = found
    before = view.output["params"][number - 1] if number else params_of(view.case)
    rows = [seen.output["params"][number] for seen in view.case_result.seen]
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
