"""
Answers to task 00.1.
"""

from bank import Answer

ANSWERS = [
    Answer(
        "00.1",
        "prints its share",
        "nothing",
        """\
import torch.distributed as dist

def my_items(items):
    print(items[dist.get_rank() :: dist.get_world_size()])
""",
    ),
    Answer(
        "00.1",
        "takes every item",
        "all-items",
        """\
def my_items(items):
    return items
""",
    ),
    Answer(
        "00.1",
        "asks for the number of ranks once, at the top of the cell",
        "fixed-size",
        """\
import torch.distributed as dist

rank, world_size = dist.get_rank(), dist.get_world_size()

def my_items(items):
    return items[rank::world_size]
""",
    ),
    Answer(
        "00.1",
        "cuts shares to one length",
        "short",
        """\
import torch.distributed as dist

def my_items(items):
    world_size = dist.get_world_size()
    return items[dist.get_rank() :: world_size][: len(items) // world_size]
""",
    ),
    Answer(
        "00.1",
        "counts ranks from 1",
        "values",
        """\
import torch.distributed as dist

def my_items(items):
    return items[dist.get_rank() + 1 :: dist.get_world_size()]
""",
    ),
    Answer(
        "00.1",
        "takes them from the end",
        "order",
        """\
import torch.distributed as dist

def my_items(items):
    return items[dist.get_rank() :: dist.get_world_size()][::-1]
""",
    ),
    Answer(
        "00.1",
        "takes a block",
        "block",
        """\
import torch.distributed as dist

def my_items(items):
    size = -(-len(items) // dist.get_world_size())
    return items[dist.get_rank() * size :][:size]
""",
    ),
    Answer(
        "00.1",
        "yields them",
        "no-list",
        """\
import torch.distributed as dist

def my_items(items):
    return tuple(items[dist.get_rank() :: dist.get_world_size()])
""",
    ),
    Answer(
        "00.1",
        "asks each item where it is",
        "by-value",
        """\
import torch.distributed as dist

def my_items(items):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return [item for item in items if items.index(item) % world_size == rank]
""",
    ),
    Answer(
        "00.1",
        "takes items out of a copy",
        None,
        """\
import torch.distributed as dist

def my_items(items):
    rest, mine = list(items), []
    while rest:
        mine += rest[dist.get_rank() : dist.get_rank() + 1]
        del rest[: dist.get_world_size()]
    return mine
""",
    ),
    Answer(
        "00.1",
        "lets rank 0 send them",
        "forbidden",
        """\
import torch.distributed as dist

def my_items(items):
    shares = [items[r :: dist.get_world_size()] for r in range(dist.get_world_size())]
    mine = [None]
    dist.scatter_object_list(mine, shares if dist.get_rank() == 0 else None)
    return mine[0]
""",
    ),
    Answer(
        "00.1",
        "goes through the places one by one",
        None,
        """\
import torch.distributed as dist

def my_items(items):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return [item for place, item in enumerate(items) if place % world_size == rank]
""",
    ),
    Answer(
        "00.1",
        "remembers the share of lists of a length",
        "kept",
        """\
import torch.distributed as dist

_shares = {}

def my_items(items):
    key = (len(items), dist.get_rank(), dist.get_world_size())
    if key not in _shares:
        _shares[key] = [items[place] for place in range(key[1], key[0], key[2])]
    return list(_shares[key])
""",
    ),
    Answer(
        "00.1",
        "leaves out what counts as false",
        "left-out",
        """\
import torch.distributed as dist

def my_items(items):
    return [one for one in items[dist.get_rank() :: dist.get_world_size()] if one]
""",
    ),
    Answer(
        "00.1",
        "leaves itself out by recursion, item after item",
        None,
        """\
import torch.distributed as dist

def my_items(items, skipped=None):
    skipped = dist.get_rank() if skipped is None else skipped
    if skipped >= len(items):
        return []
    return [items[skipped], *my_items(items[skipped + 1 :], dist.get_world_size() - 1)]
""",
    ),
]
