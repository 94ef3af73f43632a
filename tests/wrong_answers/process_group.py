"""
Answers to exercise 01.
"""

from bank import Answer

_JOIN = """\
import torch.distributed as dist

def join(path, rank, world_size):
    store = dist.FileStore(path, world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
"""

_PARITY = """\
import torch.distributed as dist

def even_and_odd():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    even = dist.new_group(list(range(0, world_size, 2)))
    odd = dist.new_group(list(range(1, world_size, 2)))
    return odd if rank % 2 else even
"""
_MADE = _PARITY[_PARITY.index("    even =") : _PARITY.index("    return")]

_MISSING = """\
import time

def missing(store, rank, world_size, deadline_s):
    give_up_at = time.monotonic() + deadline_s
    store.set(f"here/{rank}", "yes")
    absent = list(range(world_size))
    while absent and time.monotonic() < give_up_at:
        absent = [r for r in absent if not store.check([f"here/{r}"])]
        time.sleep(0.01)
    return absent
"""
_LOOP = _MISSING[_MISSING.index("    while") : _MISSING.index("    return")]


def _but(source, old, new):
    assert old in source
    return source.replace(old, new)


ANSWERS = [
    Answer(
        "01.1",
        "makes a store and no group",
        "not-joined",
        _but(
            _JOIN,
            "    dist.init_process_group",
            "    return dist.PrefixStore('', store)\n    dist.init_process_group",
        ),
    ),
    Answer(
        "01.1",
        "leaves the group again",
        "not-joined",
        _JOIN + "    dist.destroy_process_group()\n",
    ),
    Answer(
        "01.1",
        "makes a world of its own",
        "alone",
        _but(
            _JOIN,
            "store=store, rank=rank, world_size=world_size",
            "store=dist.HashStore(), rank=0, world_size=1",
        ),
    ),
    Answer(
        "01.1",
        "counts ranks from the other end",
        "other-rank",
        _but(_JOIN, "rank=rank", "rank=world_size - 1 - rank"),
    ),
    Answer(
        "01.1",
        "uses a file of its own",
        "other-store",
        _but(_JOIN, "FileStore(path,", 'FileStore(path.rpartition("/")[0] + "/mine",'),
    ),
    Answer(
        "01.1",
        "waits for four ranks, however many there are",
        "raised",
        _but(_JOIN, "world_size=world_size", "world_size=4"),
    ),
    Answer(
        "01.1",
        "names the backend and nothing else",
        "raised",
        """\
import os
import torch.distributed as dist

def join(path, rank, world_size):
    for name in ("RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    dist.init_process_group("gloo")
""",
    ),
    Answer(
        "01.1",
        "gives an address of the file",
        None,
        """\
from datetime import timedelta
import torch.distributed as dist

def join(path, rank, world_size):
    who, limit = {"rank": rank, "world_size": world_size}, timedelta(seconds=20)
    dist.init_process_group(init_method=f"file://{path}", backend="cpu:gloo", timeout=limit, **who)
""",
    ),
    Answer(
        "01.2",
        "makes only the group that it is in",
        "own-only",
        _but(
            _PARITY,
            _MADE,
            "    even = odd = dist.new_group(list(range(rank % 2, world_size, 2)))\n",
        ),
    ),
    Answer(
        "01.2",
        "makes its own group first",
        "order",
        _but(
            _PARITY,
            _MADE,
            """\
    for start in (rank % 2, 1 - rank % 2):
        group = dist.new_group(list(range(start, world_size, 2)))
        if start == rank % 2:
            even = odd = group
""",
        ),
    ),
    Answer(
        "01.2",
        "returns the even group to all",
        "not-member",
        _but(_PARITY, "odd if rank % 2 else even", "even"),
    ),
    Answer(
        "01.2",
        "returns ranks, not a group",
        "no-group",
        _but(_PARITY, "odd if rank % 2 else even", "list(range(rank % 2, world_size, 2))"),
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
        _but(
            _but(_PARITY, "list(range(0, world_size, 2))", "[0, 2]"),
            "list(range(1, world_size, 2))",
            "[1, 3]",
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
        "01.3",
        "writes no key of its own",
        "unsaid",
        _but(_MISSING, '    store.set(f"here/{rank}", "yes")\n', ""),
    ),
    Answer(
        "01.3",
        "looks once",
        "impatient",
        _but(
            _MISSING, _LOOP, '    absent = [r for r in absent if not store.check([f"here/{r}"])]\n'
        ),
    ),
    Answer("01.3", "names nobody", "nobody", _but(_MISSING, "return absent", "return []")),
    Answer(
        "01.3",
        "sleeps until the deadline, then looks",
        "slow",
        _but(
            _MISSING,
            _LOOP,
            """\
    time.sleep(deadline_s)
    absent = [r for r in absent if not store.check([f"here/{r}"])]
""",
        ),
    ),
    Answer(
        "01.3",
        "gets the keys of the others",
        "raised",
        _but(_MISSING, 'not store.check([f"here/{r}"])', 'store.get(f"here/{r}") != b"yes"'),
    ),
    Answer(
        "01.3", "returns a set", "no-list", _but(_MISSING, "return absent", "return set(absent)")
    ),
    Answer(
        "01.3",
        "waits for each key with the time that is left",
        None,
        """\
import time
from datetime import timedelta

def missing(store, rank, world_size, deadline_s):
    give_up_at, absent = time.monotonic() + deadline_s, []
    store.add(str(rank), 1)
    for other in range(world_size):
        left_s = max(give_up_at - time.monotonic(), 0.01)
        while not store.check([str(other)]) and time.monotonic() < give_up_at:
            time.sleep(min(left_s, 0.01))
        if not store.check([str(other)]):
            absent.append(other)
    return absent
""",
    ),
]
