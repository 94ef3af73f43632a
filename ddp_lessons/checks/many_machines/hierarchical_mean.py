"""
Task 17.1: a hierarchical all-reduce for any hosts.

On each rank: `_act`; in both: `_tensor`. In the kernel: the rest.
"""

from dataclasses import replace

import torch
import torch.distributed as dist

from ddp_lessons.checks.kit import (
    VALUES,
    Case,
    Expected,
    Mistake,
    Task,
    normal_numbers,
    sum_error,
    whole_numbers,
    words,
)
from ddp_lessons.many_machines import crossing_bytes, split_hosts
from ddp_lessons.pictures import collective_picture
from ddp_lessons.trace.events import COLLECTIVE

_SPARE_BYTES = 64
"""
Bytes that each host may send in addition, for example its number of ranks.
"""
_LAYOUTS = (
    ((0, 1, 2), (3,)),
    ((0,), (1, 2)),
    ((0, 3), (1, 2)),
    ((0,), (1, 2), (3,)),
)


def _cases(draw):
    yield Case(4, {"hosts": [[0, 1], [2, 3]], "shape": [2], "numbers": "whole"}, seed=0)
    for layout in _LAYOUTS:
        world_size = sum(map(len, layout))
        shape = [draw.randint(20, 60), draw.randint(20, 40)]
        facts = {"hosts": [list(ranks) for ranks in layout], "shape": shape, "numbers": "whole"}
        yield Case(world_size, facts)
    shape = [draw.randint(300, 900)]
    yield Case(4, {"hosts": [[0, 2], [1, 3]], "shape": shape, "numbers": "any"})
    yield Case(4, {"hosts": [[0], [1, 2], [3]], "shape": shape, "numbers": "any"})
    yield Case(3, {"hosts": [[0, 1, 2]], "shape": shape, "numbers": "any"})
    yield Case(2, {"hosts": [[0], [1]], "shape": shape, "numbers": "whole"})
    yield Case(1, {"hosts": [[0]], "shape": [], "numbers": "any"})


def _tensor(case, rank, number):
    """
    Return the argument of a rank in one of the two calls, numbered 0 and 1.
    """
    if case["numbers"] == "whole" and (rank, number) == (1, 1):
        return torch.zeros(case["shape"])  # a rank with zeros alone still has to take part
    if case["numbers"] == "whole":
        # The numbers are positive, so that no mean is 0, and differ in the two calls.
        return whole_numbers(case, rank, case["shape"]).abs() + 10.0**number
    return normal_numbers(case, rank + number * case.world_size, case["shape"], torch.float64)


def _act(context, hierarchical_mean):
    hosts = split_hosts(context["hosts"])
    dist.barrier()  # the keys of the groups are set: only later keys are counted
    results = []
    for number in range(2):
        tensor = _tensor(context.case, context.rank, number).to(context.device)
        results.append(context.call(hierarchical_mean, tensor, hosts.local, hosts.leaders))
    first = context.calls[0].result
    is_kept = isinstance(first, torch.Tensor) and not torch.equal(results[0].cpu(), first)
    dist.barrier()
    groups = {id(group): group for group in (hosts.local, hosts.leaders, hosts.twins) if group}
    for group in groups.values():
        dist.destroy_process_group(group)
    return is_kept


def _rows(case, number):
    return [_tensor(case, rank, number) for rank in range(case.world_size)]


def _of_calls(what_of):
    """
    Return a function (case, rank) that returns {call: `what_of(case, rank, rows)`}.
    """
    return lambda case, rank: {
        f"call {number + 1}": what_of(case, rank, _rows(case, number)) for number in range(2)
    }


def _mean(_, __, rows):
    return (sum(row.double() for row in rows) / len(rows)).to(rows[0].dtype)


def _most_off(_, __, rows):
    # The error of a sum counts twice: an answer that divides first rounds each term once more. The
    # other term is the rounding of the result.
    unit, mean = torch.finfo(rows[0].dtype).eps, sum(row.double() for row in rows) / len(rows)
    return 2 * sum_error(rows) / len(rows) + 2 * unit * mean.abs()


def _gave(view):
    return {f"call {number}": call.result for number, call in enumerate(view.seen.calls, start=1)}


class _Sums:
    """
    The sums and means of a rank's host, of each host and of all ranks, in one call.
    """

    def __init__(self, case, rank, number):
        layout, self.w = case["hosts"], case.world_size
        self.rows = [row.double() for row in _rows(case, number)]
        (self.own,) = [ranks for ranks in layout if rank in ranks]
        self.sums = [sum(self.rows[rank] for rank in ranks) for ranks in layout]
        self.context, self.all = sum(self.rows[rank] for rank in self.own), sum(self.rows)
        self.means = [total / len(one) for total, one in zip(self.sums, layout, strict=True)]
        self.firsts = [self.rows[min(ranks)] for ranks in layout]


def _gives(values_of):
    """
    Return a `shows` that finds a call whose result is wrong and one of `values_of(sums)`.
    """

    def shows(view):
        for number, call in enumerate(view.got if view.is_off else ()):
            got, right = view.got[call], view.expected[call]
            if got.shape != right.shape or _is_close(got, right.double()):
                continue
            if any(_is_close(got, one) for one in values_of(_Sums(view.case, view.rank, number))):
                return f"{call.capitalize()} gives {words(got)}, and the mean is {words(right)}."
        return ""

    return shows


def _of_some_ranks(sums):
    leaders = sum(sums.firsts)
    host = [sums.context / len(sums.own), sums.context / sums.w, sums.context]
    return [*host, leaders / len(sums.firsts), leaders / sums.w]


def _not_divided(sums):
    hosts = len(sums.sums)
    return [sums.all, sums.all / hosts, sums.all / hosts / len(sums.own)]


def _counts_twice(view):
    own = next(ranks for ranks in view.case["hosts"] if view.rank in ranks)
    sums = [event for event in view.events if event.name in ("reduce", "all_reduce")]
    on_host = [event for event in sums if set(event.ranks) == set(own)]
    has_again = len(on_host) > 2 and "It is added up on its host twice in a call."  # one a call
    return view.is_off and (has_again or _gives(lambda sums: [sums.all / sums.w**2])(view))


def _stays_with_leaders(view):
    own = _gives(lambda sums: [sums.rows[view.rank]])(view)
    right = [case_result for case_result in view.case_result.seen if _is_right(view, case_result)]
    return view.is_off and (
        own or (right and f"The mean is on {len(right)} of {view.case.world_size} ranks only.")
    )


def _is_right(view, seen):
    pairs = zip(seen.calls, view.expected.values(), strict=True)
    return all(
        getattr(call.result, "shape", None) == mean.shape and _is_close(call.result, mean.double())
        for call, mean in pairs
    )


def _is_unlike(view):
    pairs = zip(view.seen.calls, view.case_result.seen[0].calls, strict=True)
    return any(not torch.equal(one.result, first.result) for one, first in pairs)


def _is_close(got, value):
    return torch.allclose(got.double(), value, rtol=1e-5, atol=1e-6)


def crossed_bytes(case_result):
    """
    Return the bytes that all ranks together send to other hosts in a call, as a mean of both calls.
    """
    layout = case_result.case["hosts"]
    return sum(crossing_bytes(events, layout) for events in case_result.traces) / 2


def _crosses_too_often(view):
    # Return a fact if more bytes cross between hosts than in a ring of the hosts.
    layout, tensor = view.case["hosts"], view.case_result.before[0]
    least = 2 * (len(layout) - 1) * tensor.numel() * tensor.element_size()
    crossed = crossed_bytes(view.case_result)
    return crossed > least + _SPARE_BYTES * len(layout) and (
        f"The mean is right. But {crossed:.0f} bytes cross from host to host, where {least} are "
        f"enough: the {len(layout)} hosts' sums, each sent on as a ring does."
    )


def _is_flat_for(view):
    is_flat = any(_is_flat(event, view.case) for event in view.seen.calls[-1].events)
    return is_flat and _crosses_too_often(view)


def _is_flat(event, case):
    # Tell whether an event is a large collective of all ranks although some are no leaders.
    is_whole = event.kind == COLLECTIVE and set(event.ranks) == set(range(case.world_size))
    is_large = max(event.input_bytes, event.output_bytes) > _SPARE_BYTES
    return is_whole and is_large and len(case["hosts"]) < case.world_size


def _draw(case_result):
    before = [row.tolist() for row in case_result.before]
    return collective_picture(
        "mean over hosts", before, [row.tolist() for row in case_result.results]
    )


hierarchical_mean = Task(
    number="17.1",
    name="hierarchical_mean",
    cases=_cases,
    act=_act,
    ok="the sum of a host crosses once, for 1 to 4 hosts, even or not",
    draw=_draw,
    hints=(
        "Three moves: within each host to one rank, among those ranks, and within each host to all "
        "of its ranks.",
        "Only leaders take part in the second move: their `leaders` is not None. The first and "
        "the last one are made by all ranks, in `local`.",
        "dist.reduce and dist.broadcast name the leader by its rank in the default group: the "
        "first of dist.get_process_group_ranks(local). Divide by the number of all ranks.",
        "dist.reduce(total, leader, group=local) is the first move; the last one is a broadcast "
        "with the same leader and group.",
    ),
    expected=Expected(_of_calls(_mean), most_off=_of_calls(_most_off), gave=_gave),
    mistakes=(
        Mistake(
            "mean-of-means",
            "A host of three ranks counts as much as one of one here. Send sums, and divide at the "
            "end.",
            shows=_gives(lambda sums: [sum(sums.means) / len(sums.means)]),
        ),
        Mistake(
            "summed",
            "Divide by the number of all ranks, once. Hosts need not be equally full.",
            shows=_gives(_not_divided),
        ),
        Mistake(
            "host-only",
            "Some ranks' numbers are not in it. A leader needs the sum of its host before it meets "
            "the other leaders, and the leaders have to add up.",
            shows=_gives(_of_some_ranks),
        ),
        Mistake(
            "twice",
            "Something is added up, or divided, once too often. The last of the three moves hands "
            "the sum of all out to the host, as a broadcast does; a sum counts it again.",
            "It has been divided by the number of ranks twice.",
            shows=_counts_twice,
        ),
        Mistake(
            "not-back",
            "Only leaders know the result until each sends it to the ranks of its host.",
            shows=_stays_with_leaders,
        ),
        replace(
            VALUES,
            hint="Take hosts [[0, 1, 2], [3]] and one number a rank, and go through the moves. "
            "Send numbers as they are: half of the bits is half of the digits.",
        ),
        Mistake(
            "not-equal",
            "Let one rank of each host finish, and the others get its bits: a rank that adds in "
            "another order rounds in another way.",
            "Its mean and that of rank 0 differ in their last bits.",
            shows=_is_unlike,
        ),
        Mistake(
            "kept",
            "Make a new tensor in each call, and return that one.",
            "What the first call returned had changed after the second.",
            shows=lambda view: view.output,
        ),
        Mistake(
            "flat",
            "A collective of all ranks sends round a ring that knows no hosts. Add up in the "
            "smaller groups first.",
            shows=_is_flat_for,
        ),
        Mistake(
            "too-many",
            "Let one tensor of each host cross, in the dtype that it has, and be added up on the "
            "way. A gather hands the sum of every host to every leader: h (h - 1) of them.",
            shows=_crosses_too_often,
        ),
        Mistake(
            "store",
            "The groups are there already: making one takes messages and time, at each call.",
        ),
        Mistake(
            "deadlock",
            "A rank that is no leader has None for leaders, which torch takes for the group of all "
            "ranks: it must not make that call.",
        ),
        Mistake(
            "raised",
            "The line that is named is yours. Ranks in dst, src and root are those of the default "
            "group; and a host may have one rank alone.",
        ),
    ),
)
