"""
Answers to exercise 01.
"""

from bank import Answer, changed

JOIN = """\
import torch.distributed as dist

def join(path, rank, world_size):
    store = dist.FileStore(path, world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
"""

PARITY = """\
import torch.distributed as dist

def even_and_odd():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    even = dist.new_group(list(range(0, world_size, 2)))
    odd = dist.new_group(list(range(1, world_size, 2)))
    return odd if rank % 2 else even
"""
MADE = PARITY[PARITY.index("    even =") : PARITY.index("    return")]

MISSING = """\
import time

def missing(store, rank, world_size, deadline_s):
    give_up_at = time.monotonic() + deadline_s
    store.set(f"here/{rank}", "yes")
    while True:
        absent = [r for r in range(world_size) if not store.check([f"here/{r}"])]
        if not absent or time.monotonic() >= give_up_at:
            break
        time.sleep(0.01)
    return absent
"""
LOOP = MISSING[MISSING.index("    while") : MISSING.index("    return")]


ANSWERS = [
    Answer(
        "01.1",
        "makes a store and no group",
        "not-joined",
        changed(
            JOIN,
            (
                "    dist.init_process_group",
                "    return dist.PrefixStore('', store)\n    dist.init_process_group",
            ),
        ),
    ),
    Answer(
        "01.1",
        "leaves the group again",
        "not-joined",
        JOIN + "    dist.destroy_process_group()\n",
    ),
    Answer(
        "01.1",
        "makes a world of its own",
        "alone",
        changed(
            JOIN,
            (
                "store=store, rank=rank, world_size=world_size",
                "store=dist.HashStore(), rank=0, world_size=1",
            ),
        ),
    ),
    Answer(
        "01.1",
        "counts ranks from the other end",
        "other-rank",
        changed(JOIN, ("rank=rank", "rank=world_size - 1 - rank")),
    ),
    Answer(
        "01.1",
        "uses a file of its own",
        "other-store",
        changed(JOIN, ("FileStore(path,", 'FileStore(path.rpartition("/")[0] + "/mine",')),
    ),
    Answer(
        "01.1",
        "waits for four ranks, however many there are",
        "raised",
        changed(JOIN, ("world_size=world_size", "world_size=4")),
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
        "returns ranks, not a group",
        "no-group",
        changed(PARITY, ("odd if rank % 2 else even", "list(range(rank % 2, world_size, 2))")),
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
        "01.3",
        "writes no key of its own",
        "unsaid",
        changed(MISSING, ('    store.set(f"here/{rank}", "yes")\n', "")),
    ),
    Answer(
        "01.3",
        "looks once",
        "impatient",
        changed(
            MISSING,
            (
                LOOP,
                '    absent = [r for r in range(world_size) if not store.check([f"here/{r}"])]\n',
            ),
        ),
    ),
    Answer("01.3", "names nobody", "nobody", changed(MISSING, ("return absent", "return []"))),
    Answer(
        "01.3",
        "sleeps until the deadline, then looks",
        "slow",
        changed(
            MISSING,
            (
                LOOP,
                """\
    time.sleep(deadline_s)
    absent = [r for r in range(world_size) if not store.check([f"here/{r}"])]
""",
            ),
        ),
    ),
    Answer(
        "01.3",
        "gets the keys of the others",
        "raised",
        changed(MISSING, ('not store.check([f"here/{r}"])', 'store.get(f"here/{r}") != b"yes"')),
    ),
    Answer(
        "01.3",
        "returns a set",
        "no-list",
        changed(MISSING, ("return absent", "return set(absent)")),
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
    Answer(
        "01.1",
        "takes the fake backend",
        "values",
        """\
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # noqa: F401

def join(path, rank, world_size):
    store = dist.FileStore(path, world_size)
    store.set(f"rank{rank}", "here")
    dist.init_process_group("fake", store=store, rank=rank, world_size=world_size)
""",
    ),
]
