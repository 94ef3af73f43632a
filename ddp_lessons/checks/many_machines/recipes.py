"""
The computation of the seconds of a batch for task 17.2, right and with usual mistakes.
"""

from ddp_lessons.costs import Link
from ddp_lessons.many_machines import EVERY, SHARE, WAYS, Plan, foretold_s

LIMIT = 1.1
"""
A right choice takes at most this many times the seconds of the best allowed way.
"""
_SAME = 1e-6  # costs with a smaller relative difference are equal, up to rounding
FIGURES = (
    "num_hosts", "ranks_per_host", "num_bytes", "compute_s", "pack_s", "latency_s", "bytes_per_s",
    "local_latency_s", "local_bytes_per_s",
)  # fmt: skip
_NO_TIME = {"local_latency_s": 0.0, "local_bytes_per_s": float("inf")}


def plan_of(figures):
    """
    Return the Plan of `ddp_lessons.many_machines` for some figures.
    """
    return Plan(
        figures["num_hosts"],
        figures["ranks_per_host"],
        figures["num_bytes"],
        figures["compute_s"],
        Link(figures["latency_s"], figures["bytes_per_s"]),
        Link(figures["local_latency_s"], figures["local_bytes_per_s"]),
        figures["pack_s"],
    )


def batch_s(name, figures, **other):
    """
    Return the seconds of a batch, by the formulas of `ddp_lessons.many_machines`.

    Args:
        name: A name in WAYS.
        figures: {name: number} for the names in FIGURES.
        other: Figures that replace those of the same name.
    """
    return foretold_s(name, plan_of({**figures, **other}))


def _no_window(name, figures):
    compute_s = figures["compute_s"]
    return compute_s + (batch_s(name, figures) - compute_s) * EVERY.get(name, 1)


def _compute_shared(name, figures):
    return batch_s(name, figures) - figures["compute_s"] * (1 - 1 / EVERY.get(name, 1))


def _not_shared(name, figures):
    # The mistake gives each rank of a host the whole link for its part.
    if name != "hierarchical":
        return batch_s(name, figures)
    h, g = figures["num_hosts"], figures["ranks_per_host"]
    across_s = 2 * (h - 1) / h * figures["num_bytes"] / figures["bytes_per_s"]
    return batch_s(name, figures) - across_s * (1 - 1 / g)


def _as_all_reduce(name, figures):
    if name != "top-k":
        return batch_s(name, figures)
    rest_s = figures["compute_s"] + figures["pack_s"]
    less = int(2 * SHARE * figures["num_bytes"])
    return rest_s + batch_s("flat", figures, num_bytes=less, compute_s=0.0)


def _one_message(name, figures):
    share = {"half": 0.5, "top-k": 2 * SHARE}.get(name, 1)
    packed_s = figures["pack_s"] if share < 1 else 0.0
    message_s = figures["latency_s"] + share * figures["num_bytes"] / figures["bytes_per_s"]
    return figures["compute_s"] + packed_s + message_s / EVERY.get(name, 1)


def _flat_by_hosts(name, figures):
    # The mistake concerns the ways that send the whole gradient round the flat ring. half and top-k
    # are computed right.
    fewer = {} if name in ("half", "top-k", "hierarchical") else {"ranks_per_host": 1}
    return batch_s(name, figures, **fewer)


def _no_positions(name, figures):
    less_s = batch_s("top-k", figures) - batch_s("top-k", figures, num_bytes=0)
    return batch_s(name, figures) - (less_s / 2 if name == "top-k" else 0.0)


def _accumulate_as_local(name, figures):
    return batch_s("local SGD" if name == "accumulate" else name, figures)


def _local_as_accumulate(name, figures):
    return batch_s("accumulate" if name == "local SGD" else name, figures)


RECIPES = {
    "slowest": lambda name, figures: -batch_s(name, figures),
    "not-allowed": batch_s,
    "no-latency": lambda name, figures: batch_s(name, figures, latency_s=0.0, local_latency_s=0.0),
    "no-bytes": lambda name, figures: batch_s(name, figures, num_bytes=0),
    "bits": lambda name, figures: batch_s(name, figures, num_bytes=8 * figures["num_bytes"]),
    "no-packing": lambda name, figures: batch_s(name, figures, pack_s=0.0),
    "no-window": _no_window,
    "no-local": lambda name, figures: batch_s(name, figures, **_NO_TIME),
    "not-shared": _not_shared,
    "one-message": _one_message,
    "top-k-reduced": _as_all_reduce,
    "hosts-only": lambda name, figures: batch_s(name, figures, ranks_per_host=1),
    "flat-by-hosts": _flat_by_hosts,
    "window-of-8": _accumulate_as_local,
    "window-of-4": _local_as_accumulate,
    "no-positions": _no_positions,
    "compute-shared": _compute_shared,
}
"""
For each mistake the function (name, figures) by which it computes the seconds of a batch.

"not-allowed" computes right, but chooses among all ways.
"""
ALWAYS_WRONG = ("slowest", "not-allowed")
SHARED = {
    "top-k-reduced": ("one-message",),
    "window-of-8": ("flat-by-hosts", "hosts-only", "one-message", "no-bytes", "no-latency"),
    "window-of-4": ("no-window",),
    "no-positions": tuple(name for name in RECIPES if name != "no-positions"),
    "compute-shared": ("no-bytes", "hosts-only", "flat-by-hosts"),
}
"""
For each mistake the other mistakes that may choose badly in its case, too. They have cases of their
own.
"""


def chosen_by(mistake, figures, allowed):
    """
    Return the ways that a mistake may choose: all that it computes to be the fastest.
    """
    among = list(WAYS) if mistake == "not-allowed" else allowed
    costs = {name: RECIPES[mistake](name, figures) for name in among}
    least = min(costs.values())
    return [name for name, cost in costs.items() if cost <= least + _SAME * abs(least)]


def times_worse(name, figures, allowed):
    """
    Return the seconds of a way as a multiple of the best allowed way's; infinity if not allowed.
    """
    if name not in allowed:
        return float("inf")
    return batch_s(name, figures) / min(batch_s(one, figures) for one in allowed)
