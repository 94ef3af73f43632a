"""
Foretell how long a batch takes, by each way to average over several hosts.

Legend: w = h g ranks on h hosts of g; a gradient of B bytes; a message of n bytes takes L + n / b
between hosts, and l + n / m within one. Compute c does not overlap with messages here.

    flat           c + 2 (w - 1) (L + B / w / b)
    hierarchical   c + 2 (g - 1) (l + B / g / m) + 2 (h - 1) (L + B / h / b)
    half           c + p + 2 (w - 1) (L + B / 2 / w / b)
    top-k          c + p + (w - 1) (L + 2 s B / b)      a value and its position: twice the bytes
    accumulate     c + a 4th of the flat ring
    local SGD      c + an 8th of it

A ring through all ranks goes by its slowest messages, those between hosts. Parts of twins share the
link of their host, which makes g messages of B / g / h one of B / h.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from ..costs import Link, collective_s
from ..errors import BadInput

SHARE = 0.01
"""
Share of the numbers that top-k sends.
"""
EVERY = {"accumulate": 4, "local SGD": 8}
"""
After how many batches ranks talk, where it is not after each.
"""
PLOTTED_BYTES = tuple(15_000 * 2**k for k in range(10))
"""
Sizes of gradients that are near enough to each other for a line on logarithmic axes.
"""


@dataclass(frozen=True)
class Plan:
    """
    Hold what a batch is made of.

    Args:
        num_hosts: Hosts, h.
        ranks_per_host: Ranks on each, g.
        num_bytes: Bytes of the gradient, B.
        compute_s: Seconds that each rank computes for a batch, c.
        link: A `costs.Link` between hosts.
        local: A `costs.Link` within a host; default: nothing takes time there.
        pack_s: Seconds to pack a gradient into fewer bytes and to unpack it, p.
    """

    num_hosts: int
    ranks_per_host: int
    num_bytes: int
    compute_s: float
    link: Link
    local: Link = field(default_factory=lambda: Link(0.0, float("inf")))
    pack_s: float = 0.0

    @property
    def num_ranks(self) -> int:
        """
        Ranks on all hosts, w.
        """
        return self.num_hosts * self.ranks_per_host

    @property
    def slowest(self) -> Link:
        """
        The link that a ring through all ranks goes by.
        """
        return self.local if self.num_hosts == 1 else self.link


def foretold_s(name: str, plan: Plan) -> float:
    """
    Return the seconds of a batch.

    Args:
        name: One of WAYS.
        plan: A Plan.

    Raises:
        BadInput: There is no such way.

    Lesson: 17_many_machines.
    """
    if name not in _TALK_S:
        raise BadInput(
            f"No such way: expected one of {', '.join(_TALK_S)} (got {name!r}). Name one of them."
        )
    return plan.compute_s + _TALK_S[name](plan) / EVERY.get(name, 1)


def foretold_points(
    name: str, plan: Plan, sizes_bytes: Collection[int] = PLOTTED_BYTES
) -> list[tuple[int, float, float, float]]:
    """
    Return the seconds of a batch for gradients of several sizes, as `times_plot` takes a model.

    Args:
        name: One of WAYS.
        plan: A Plan, whose own size does not count.
        sizes_bytes: Bytes of the gradients.

    Returns:
        list: Tuples (bytes, seconds, seconds, seconds): a line without a band.
    """
    times_s = [foretold_s(name, replace(plan, num_bytes=size)) for size in sizes_bytes]
    return [(size, s, s, s) for size, s in zip(sizes_bytes, times_s, strict=True)]


def _flat_s(plan, num_bytes=None):
    size = plan.num_bytes if num_bytes is None else num_bytes
    return collective_s("all_reduce", "ring", plan.num_ranks, size, plan.slowest)


def _hierarchical_s(plan):
    within = collective_s("all_reduce", "ring", plan.ranks_per_host, plan.num_bytes, plan.local)
    return within + collective_s("all_reduce", "ring", plan.num_hosts, plan.num_bytes, plan.link)


def _half_s(plan):
    return plan.pack_s + _flat_s(plan, plan.num_bytes / 2)


def _top_k_s(plan):
    whole = plan.num_ranks * 2 * SHARE * plan.num_bytes
    return plan.pack_s + collective_s("all_gather", "ring", plan.num_ranks, whole, plan.slowest)


_TALK_S = {
    "flat": _flat_s,
    "hierarchical": _hierarchical_s,
    "half": _half_s,
    "top-k": _top_k_s,
    "accumulate": _flat_s,
    "local SGD": _flat_s,
}
