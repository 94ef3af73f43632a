"""
Answers to task 04.4.
"""

from bank import Answer, changed

SHARES = """\
import torch
import torch.distributed as dist


def balanced_shares(speed, num_samples):
    world_size = dist.get_world_size()
    parts = [torch.empty_like(speed) for _ in range(world_size)]
    dist.all_gather(parts, speed)
    speeds = [part.item() for part in parts]
    exact = [num_samples * one / sum(speeds) for one in speeds]
    shares = [int(part) for part in exact]
    neediest = sorted(range(world_size), key=lambda r: shares[r] - exact[r])
    for rank in neediest[: num_samples - sum(shares)]:
        shares[rank] += 1
    return shares
"""

_GATHER = """\
    parts = [torch.empty_like(speed) for _ in range(world_size)]
    dist.all_gather(parts, speed)
    speeds = [part.item() for part in parts]
"""

REST = """\
    neediest = sorted(range(world_size), key=lambda r: shares[r] - exact[r])
    for rank in neediest[: num_samples - sum(shares)]:
        shares[rank] += 1
"""

SHARES_BY_CUTS = """\
import torch
import torch.distributed as dist


def balanced_shares(speed, num_samples):  # an all-reduce; rounds the running sum, not the shares
    speeds = speed.new_zeros(dist.get_world_size())
    speeds[dist.get_rank()] = speed[0]
    dist.all_reduce(speeds)
    ends = speeds.cumsum(0)
    cuts = (ends / ends[-1] * num_samples).floor().long().tolist()
    return [stop - start for start, stop in zip([0, *cuts], cuts)]
"""

_SHARES_ONE_BY_ONE = """\
import torch
import torch.distributed as dist


def balanced_shares(speed, num_samples):  # float32; one sample after another to who lacks most
    speeds = torch.empty(dist.get_world_size(), device=speed.device)
    dist.all_gather_into_tensor(speeds, speed.float())
    exact = num_samples * speeds / speeds.sum()
    shares = exact.floor()
    while shares.sum() < num_samples:
        shares[(exact - shares).argmax()] += 1
    return tuple(int(share) for share in shares)
"""

_BY_NEED = "key=lambda r: shares[r] - exact[r]"


def _rest_to(key):
    return changed(SHARES, (_BY_NEED, f"key=lambda r: {key}"))


def _one_by_one(key):
    lines = f"""\
    shares = [0] * world_size
    for _ in range(num_samples):
        shares[min(range(world_size), key=lambda r: {key})] += 1
    return shares
"""
    return changed(SHARES, (SHARES[SHARES.index("    exact") :], lines))


_CUT = """\
    for rank in sorted(range(world_size), key=lambda r: {})[: sum(shares) - num_samples]:
        shares[rank] -= 1
"""


def _rounded_up(key):
    return changed(SHARES, ("int(part)", "-int(-part // 1)"), (REST, _CUT.format(key)))


_ROWS = [
    ("unusual: cuts of the running sum", None, SHARES_BY_CUTS),
    ("unusual: float32, one sample after another", None, _SHARES_ONE_BY_ONE),
    ("rounds down", "sum", changed(SHARES, (REST, ""))),
    (
        "gives the last rank what is left",
        "rest-to-one",
        changed(SHARES, (REST, "    shares[-1] += num_samples - sum(shares)\n")),
    ),
    ("shares equally", "equal", changed(SHARES, ("one / sum(speeds)", "1 / world_size"))),
    ("takes speeds for seconds", "inverted", changed(SHARES, ("part.item()", "1 / part.item()"))),
    (
        "thinks that all are as fast as it is",
        "alone",
        changed(SHARES, (_GATHER, "    speeds = [speed.item()] * world_size\n")),
    ),
    (
        "gathers on rank 0 only",
        "not-agreed",
        changed(
            SHARES,
            ("torch.empty_like(speed)", "speed.clone()"),
            (
                "dist.all_gather(parts, speed)",
                "dist.gather(speed, None if dist.get_rank() else parts)",
            ),
        ),
    ),
    (
        "rounds the speeds",
        "whole-speeds",
        changed(SHARES, ("    parts =", "    speed = speed.long()\n    parts =")),
    ),
    (
        "sorts the ranks by speed",
        "order",
        changed(
            SHARES, ("[part.item() for part in parts]", "sorted(part.item() for part in parts)")
        ),
    ),
    (
        "returns its own share",
        "no-list",
        changed(SHARES, ("return shares", "return shares[dist.get_rank()]")),
    ),
    (
        "gathers into float32",
        "raised",
        changed(SHARES, ("torch.empty_like(speed)", "torch.empty(1, device=speed.device)")),
    ),
    ("gathers objects", "cost", changed(SHARES, ("all_gather(", "all_gather_object("))),
    (
        "adds speeds up in the argument",
        "input-changed",
        changed(
            SHARES,
            ("    exact", "    dist.all_reduce(speed)\n    exact"),
            ("sum(speeds)", "speed.item()"),
        ),
    ),
    ("prints the shares", "nothing", changed(SHARES, ("return shares", "print(shares)"))),
    (
        "unusual: rounds up, and takes from those that gained most",
        None,
        _rounded_up("exact[r] - shares[r]"),
    ),
    (
        "rounds, and the last one gets the rest",
        "negative",
        changed(
            SHARES,
            ("int(part)", "round(part)"),
            (REST, "    shares[-1] += num_samples - sum(shares)\n"),
        ),
    ),
    ("gives to whoever is done first", "one-by-one", _one_by_one("(shares[r] + 1) / speeds[r]")),
    ("gives the rest to the first", "whole-share", _rest_to("r")),
    (
        "goes by the square of the speed",
        "values",
        changed(SHARES, ("part.item()", "part.item() ** 2")),
    ),
    ("goes by the fastest rank", "no-parts", changed(SHARES, ("sum(speeds)", "max(speeds)"))),
    (
        "goes by percents, rounded",
        "cut-early",
        changed(
            SHARES,
            (
                "    exact",
                "    speeds = [round(100 * one / sum(speeds)) for one in speeds]\n    exact",
            ),
        ),
    ),
    (
        "keeps the speeds",
        "kept",
        changed(
            SHARES,
            ("\n\n\ndef", "\n\nKNOWN = {}\n\n\ndef"),
            (
                "    dist.all_gather(parts, speed)",
                "    if num_samples not in KNOWN:\n        dist.all_gather(parts, speed)",
            ),
            (
                "speeds = [part.item() for part in parts]",
                "speeds = KNOWN.setdefault(num_samples, [part.item() for part in parts])",
            ),
        ),
    ),
    (
        "gives each rank one sample, and shares out the others",
        "at-least-one",
        changed(
            SHARES,
            (
                "num_samples * one / sum(speeds)",
                "1 + (num_samples - world_size) * one / sum(speeds)",
            ),
        ),
    ),
    (
        "adds up in the store",
        "store",
        changed(
            SHARES,
            (
                "    dist.all_gather(parts, speed)\n",
                "    store = dist.distributed_c10d._get_default_store()\n"
                '    store.set(f"speed {dist.get_rank()}", str(speed.item()))\n    dist.barrier()\n'
                "    for rank in range(world_size):\n"
                '        parts[rank].fill_(float(store.get(f"speed {rank}")))\n',
            ),
        ),
    ),
]

ANSWERS = [Answer("04.4", *row) for row in _ROWS]
