"""
Answers to task 01.1.
"""

from bank import Answer, changed

JOIN = """\
import torch.distributed as dist

def join(path, rank, world_size):
    store = dist.FileStore(path, world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
"""

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
        "no-store",
        """\
import torch.distributed as dist

def join(path, rank, world_size):
    dist.init_process_group("gloo")
""",
    ),
    Answer(
        "01.1",
        "gives a file and does not say who it is",
        "no-identity",
        """\
import torch.distributed as dist

def join(path, rank, world_size):
    dist.init_process_group("gloo", init_method=f"file://{path}")
""",
    ),
    Answer(
        "01.1",
        "gives the path as an address",
        "bare-path",
        """\
import torch.distributed as dist

def join(path, rank, world_size):
    dist.init_process_group("gloo", init_method=path, rank=rank, world_size=world_size)
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
    Answer("01.1", "names no backend", None, changed(JOIN, ('"gloo", ', ""))),
    Answer("01.1", "returns the group", None, f"{JOIN}    return dist.group.WORLD\n"),
    Answer(
        "01.1",
        "puts a prefix before its keys",
        None,
        changed(JOIN, ("store=store", 'store=dist.PrefixStore("mine", store)')),
    ),
]
