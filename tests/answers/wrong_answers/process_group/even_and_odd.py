"""
Answers to task 01.2.
"""

from bank import Answer, changed

PARITY = """\
import torch.distributed as dist

def even_and_odd():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    even = dist.new_group(list(range(0, world_size, 2)))
    odd = dist.new_group(list(range(1, world_size, 2)))
    return odd if rank % 2 else even
"""

MADE = PARITY[PARITY.index("    even =") : PARITY.index("    return")]

_MADE_FOR_EACH = """\
import torch.distributed as dist

def even_and_odd():
    groups, world_size = {}, dist.get_world_size()
    for rank in range(world_size):
        groups[{key}] = dist.new_group(list(range(rank % 2, world_size, 2)))
    return groups[dist.get_rank(){of}]
"""

ANSWERS = [
    Answer(
        "01.2",
        "makes only the group that it is in",
        "own-only",
        changed(
            PARITY,
            (MADE, "    even = odd = dist.new_group(list(range(rank % 2, world_size, 2)))\n"),
        ),
    ),
    Answer(
        "01.2",
        "makes its own group first",
        "order",
        changed(
            PARITY,
            (
                MADE,
                """\
    for start in (rank % 2, 1 - rank % 2):
        group = dist.new_group(list(range(start, world_size, 2)))
        if start == rank % 2:
            even = odd = group
""",
            ),
        ),
    ),
    Answer(
        "01.2",
        "returns the even group to all",
        "not-member",
        changed(PARITY, ("odd if rank % 2 else even", "even")),
    ),
    Answer(
        "01.2",
        "returns both groups",
        "no-group",
        changed(PARITY, ("odd if rank % 2 else even", "even, odd")),
    ),
    Answer(
        "01.2",
        "makes halves",
        "other-ranks",
        """\
import torch.distributed as dist

def even_and_odd():
    rank, half = dist.get_rank(), (dist.get_world_size() + 1) // 2
    low = dist.new_group(list(range(half)))
    high = dist.new_group(list(range(half, dist.get_world_size())))
    return low if rank < half else high
""",
    ),
    Answer(
        "01.2",
        "knows four ranks only",
        "raised",
        changed(
            changed(PARITY, ("list(range(0, world_size, 2))", "[0, 2]")),
            ("list(range(1, world_size, 2))", "[1, 3]"),
        ),
    ),
    Answer(
        "01.2",
        "makes only its own group, and lets its members alone meet",
        None,
        """\
import torch.distributed as dist

def even_and_odd():
    mine = list(range(dist.get_rank() % 2, dist.get_world_size(), 2))
    return dist.new_group(mine, use_local_synchronization=True)
""",
    ),
    Answer(
        "01.2",
        "makes the odd group first, on every rank",
        None,
        """\
import torch.distributed as dist

def even_and_odd():
    w = dist.get_world_size()
    groups = [dist.new_group(list(range(start, w, 2))) for start in (1, 0)]
    return groups[dist.get_rank() % 2 == 0]
""",
    ),
    Answer(
        "01.2",
        "lets odd ranks alone make the odd group",
        "out-of-step",
        changed(PARITY, ("    odd = ", "    odd = even\n    if rank % 2:\n        odd = ")),
    ),
    Answer(
        "01.2",
        "keeps its groups for the next call",
        "old-group",
        changed(f"import functools\n{PARITY}", ("def even", "@functools.cache\ndef even")),
    ),
    Answer(
        "01.2",
        "makes a group for each rank",
        "not-shared",
        changed(_MADE_FOR_EACH, ("{key}", "rank"), ("{of}", "")),
    ),
    Answer(
        "01.2",
        "waits in a group that it has alone",
        "deadlock",
        changed(
            f"import torch\n{_MADE_FOR_EACH}",
            ("{key}", "rank"),
            ("return groups[dist.get_rank(){of}]", "dist.all_reduce(torch.ones(1), group=mine)"),
            ("    dist.all_reduce", "    mine = groups[dist.get_rank()]\n    dist.all_reduce"),
        )
        + "    return mine\n",
    ),
    Answer(
        "01.2",
        "makes its two groups again for each rank",
        "too-many",
        changed(_MADE_FOR_EACH, ("{key}", "rank % 2"), ("{of}", " % 2")),
    ),
    Answer(
        "01.2",
        "makes both by one call",
        None,
        """\
import torch.distributed as dist

def even_and_odd():
    places = range(dist.get_world_size())
    return dist.new_subgroups_by_enumeration([list(places[0::2]), list(places[1::2])])[0]
""",
    ),
    Answer(
        "01.2",
        "takes a backend that moves nothing",
        "values",
        "from torch.testing._internal.distributed import fake_pg\n"
        + PARITY.replace(", 2)))", ', 2)), backend="fake")'),
    ),
    Answer(
        "01.2",
        "enumerates both, the odd ones first",
        None,
        """\
import torch.distributed as dist

def even_and_odd():
    ranks = range(dist.get_world_size())
    mine, _ = dist.new_subgroups_by_enumeration([[*ranks[1::2]], [*ranks[::2]]])
    return mine
""",
    ),
]
