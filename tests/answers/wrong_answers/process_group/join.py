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
        "leaves the group again",
        "not-joined",
        JOIN + "    dist.barrier()\n    dist.destroy_process_group()\n",  # nobody is on the way in
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
    Answer(
        "01.1",
        "makes the file, and meets through another",
        "other-store",
        changed(
            JOIN,
            ("    store = ", "    open(path, 'a').close()\n    store = "),
            ("FileStore(path,", "FileStore(path + '.mine',"),
        ),
    ),
    Answer(
        "01.1",
        "removes a file that is there",
        "raised",
        changed(
            f"import os\n{JOIN}",
            ("    store = ", "    if os.path.exists(path):\n        os.remove(path)\n    store = "),
        ),
    ),
    Answer(
        "01.1",
        "makes a folder of the path",
        "other-store",
        changed(
            f"import os\n{JOIN}",
            ("    store = ", "    os.makedirs(path, exist_ok=True)\n    store = "),
            ("FileStore(path,", "FileStore(path + '/store',"),
        ),
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
