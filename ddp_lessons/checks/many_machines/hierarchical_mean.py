"""
Task 17.1: a hierarchical all-reduce for any hosts.
"""

import torch
import torch.distributed as dist

from ddp_lessons.checks.kit import Case, Task, normal_numbers, sum_error, whole_numbers
from ddp_lessons.many_machines import crossing_bytes, split_hosts
from ddp_lessons.pictures import collective_picture
from ddp_lessons.trace.events import COLLECTIVE

_SPARE_BYTES = 64
"""
What each host may send besides, such as how many ranks it has.
"""
_OF_HALF = 2**-6  # a few roundings of bfloat16
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
    Return what a rank gives in one of the two calls.
    """
    if case["numbers"] == "whole" and (rank, number) == (1, 1):
        return torch.zeros(case["shape"])  # a rank has nothing to say, and takes part all the same
    if case["numbers"] == "whole":
        # Positive, so that no mean is 0, and another one in each call.
        return whole_numbers(case, rank, case["shape"]).abs() + 10.0**number
    return normal_numbers(case, rank + number * case.world_size, case["shape"], torch.float64)


def _act(here, hierarchical_mean):
    hosts = split_hosts(here["hosts"])
    dist.barrier()  # all groups are made: the store is counted from here on
    results = []
    for number in range(2):
        tensor = _tensor(here.case, here.rank, number).to(here.device)
        results.append(here.call(hierarchical_mean, tensor, hosts.local, hosts.leaders))
    first = here.calls[0].result
    is_kept = isinstance(first, torch.Tensor) and not torch.equal(results[0].cpu(), first)
    dist.barrier()
    groups = {id(group): group for group in (hosts.local, hosts.leaders, hosts.twins) if group}
    for group in groups.values():
        dist.destroy_process_group(group)
    return is_kept


def _judge(played):
    for number in range(2):
        rows = [_tensor(played.case, seen.rank, number) for seen in played.seen]
        right = sum(row.double() for row in rows) / len(rows)
        # Twice: who divides first rounds once more in each term, and everybody in the end.
        unit = torch.finfo(rows[0].dtype).eps
        most_off = 2 * sum_error(rows) / len(rows) + 2 * unit * right.abs()
        for seen in played.seen:
            _judge_numbers(played, seen, number, rows, right, most_off)
        _judge_bits(played, number)
    for seen in played.seen:
        if seen.kept:
            fact = "What the first call returned had changed after the second."
            raise played.wrong("kept", seen.rank, fact=fact)
    _judge_crossing(played)


def _judge_numbers(played, seen, number, rows, right, most_off):
    got = seen.calls[number].result
    expected = right.to(rows[0].dtype)
    is_like = isinstance(got, torch.Tensor) and got.shape == right.shape
    is_other = is_like and got.dtype != expected.dtype and _is_close(got, right)
    if is_like and got.is_floating_point() and not is_other:
        off = (got.double() - right).abs()
        if not bool((off <= most_off).all()):
            mistake, fact = _name(played, seen, number, rows, got)
            raise played.wrong(mistake, seen.rank, got=got, expected=expected, fact=fact)
    played.expect(seen.rank, got, expected, most_off)


def _name(played, seen, number, rows, got):
    layout, w = played.case["hosts"], played.case.world_size
    rows = [row.double() for row in rows]
    (own,) = [ranks for ranks in layout if seen.rank in ranks]
    sums = [sum(rows[rank] for rank in ranks) for ranks in layout]
    here = sum(rows[rank] for rank in own)
    means = [total / len(ranks) for total, ranks in zip(sums, layout, strict=True)]
    firsts = [rows[min(ranks)] for ranks in layout]
    known = [
        ("mean-of-means", sum(means) / len(means), "This is the mean of the hosts' means."),
        ("summed", sum(sums), "This is the sum, not the mean."),
        ("summed", sum(sums) / len(sums), "This is the sum, over the number of hosts."),
        (
            "summed",
            sum(sums) / len(sums) / len(own),
            "This is the sum, over the number of hosts times the ranks of this one.",
        ),
        ("host-only", here / len(own), "This is the mean of one host."),
        ("host-only", here / w, "This is the sum of one host, over all ranks."),
        ("host-only", here, "This is the sum of one host."),
        ("leaders-only", sum(firsts) / len(firsts), "This is the mean of the leaders' own."),
        ("leaders-only", sum(firsts) / w, "This is the sum of the leaders' own, over all ranks."),
        ("twice", sum(sums) / w / w, "It has been divided by the number of ranks twice."),
        ("not-back", rows[seen.rank], "This rank has its own tensor still."),
    ]
    again = sum(sums) + (len(own) - 1) * here
    if len(own) > 1:
        known += [
            ("twice", again / w, "The sum of the host was added to that of all again."),
            ("twice", sum(sums) * len(own) / w, "The sum of all was added up on its host again."),
        ]
    for mistake, value, fact in known:
        if _is_close(got, value):
            return mistake, fact
    sums_on_host = [
        event
        for event in seen.calls[number].events
        if event.name in ("reduce", "all_reduce") and set(event.ranks) == set(own)
    ]
    if len(sums_on_host) > 1:
        return "twice", "It has been added up on its host twice."
    right = sum(rows) / w
    results = [one.calls[number].result for one in played.seen]
    lucky = [
        one
        for one in results
        if isinstance(one, torch.Tensor) and one.shape == right.shape and _is_close(one, right)
    ]
    if lucky:
        return "not-back", f"The mean is on {len(lucky)} of {w} ranks only."
    if torch.allclose(got.double(), right, rtol=_OF_HALF, atol=_OF_HALF):
        return "rounded", "The numbers are nearly those expected: bits are lost on the way."
    return "values", "The numbers are not those expected."


def _is_close(got, value):
    return torch.allclose(got.double(), value, rtol=1e-5, atol=1e-6)


def _judge_bits(played, number):
    first, *others = [seen.calls[number].result for seen in played.seen]
    for rank, other in enumerate(others, start=1):
        if not torch.equal(first, other):
            fact = f"Ranks 0 and {rank} have means that differ in their last bits."
            raise played.wrong("not-equal", rank, got=other, expected=first, fact=fact)


def crossed_bytes(played):
    """
    Return the bytes that all ranks have sent to other hosts, on average over the calls.
    """
    layout = played.case["hosts"]
    return sum(crossing_bytes(events, layout) for events in played.traces) / 2


def _judge_crossing(played):
    layout = played.case["hosts"]
    tensor = played.before[0]
    least = 2 * (len(layout) - 1) * tensor.numel() * tensor.element_size()
    crossed = crossed_bytes(played)
    if crossed <= least + _SPARE_BYTES * len(layout):
        return
    fact = (
        f"The mean is right. But {crossed:.0f} bytes cross from host to host, where {least} are "
        f"enough: the {len(layout)} hosts' sums, each sent on as a ring does."
    )
    for seen in played.seen:
        if any(_is_flat(event, played.case) for event in seen.calls[-1].events):
            raise played.wrong("flat", seen.rank, fact=fact)
    raise played.wrong("too-many", fact=fact)


def _is_flat(event, case):
    # A large collective of all ranks, where these are not the leaders at the same time.
    is_whole = event.kind == COLLECTIVE and set(event.ranks) == set(range(case.world_size))
    is_large = max(event.input_bytes, event.output_bytes) > _SPARE_BYTES
    return is_whole and is_large and len(case["hosts"]) < case.world_size


def _draw(played):
    before = [row.tolist() for row in played.before]
    return collective_picture("mean over hosts", before, [row.tolist() for row in played.results])


hierarchical_mean = Task(
    number="17.1",
    name="hierarchical_mean",
    cases=_cases,
    act=_act,
    judge=_judge,
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
    mistakes={
        "mean-of-means": "A host of three ranks counts as much as one of one here. Send sums, and "
        "divide at the end.",
        "summed": "Divide by the number of all ranks, once.",
        "host-only": "Hosts have not heard of each other: the leaders have to add up, too.",
        "leaders-only": "A leader speaks for its host: it needs the sum of its ranks before it "
        "meets the other leaders.",
        "not-back": "Only leaders know the result until each sends it to the ranks of its host.",
        "twice": "Something is added up, or divided, once too often. The last of the three moves "
        "hands the sum of all out to the host, as a broadcast does; a sum counts it again.",
        "not-equal": "Let one rank of each host finish, and the others get its bits: who adds in "
        "another order rounds in another way.",
        "rounded": "Send the numbers as they are, in the dtype that they have: half of the bits is "
        "half of the digits.",
        "flat": "A collective of all ranks sends round a ring that knows no hosts. Add up in the "
        "smaller groups first.",
        "too-many": "Let one tensor of each host cross, in the dtype that it has, and be added up "
        "on the way. A gather hands the sum of every host to every leader: h (h - 1) of them.",
        "store": "The groups are there already: making one takes messages and time, at each call.",
        "deadlock": "A rank that is no leader has None for leaders, which torch takes for the "
        "group of all ranks: it must not make that call.",
        "kept": "Make a new tensor in each call, and return that one.",
        "input-changed": "Add up in a copy: the argument stays the caller's.",
        "raised": "The line that is named is yours. Ranks in dst, src and root are those of the "
        "default group; and a host may have one rank alone.",
        "values": "Take hosts [[0, 1, 2], [3]] and one number a rank, and go through the moves. "
        "Hosts need not have equally many ranks.",
    },
)
