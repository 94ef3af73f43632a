"""
Answers to task 08.1.
"""

from bank import Answer

from wrong_answers.checkpoint.sources import altered, save

_ONE_FILE = """
import torch, torch.distributed as dist
def save(state, path):
    if dist.get_rank() == 0:
        torch.save(state, path)
    dist.barrier()
"""

OVER = ('"wb"', '"r+b" if other.exists() else "wb"')

ANSWERS = [
    Answer("08.1", "writes in place", "in-place", _ONE_FILE),
    Answer(
        "08.1",
        "every rank writes the file",
        "every-rank",
        """
import torch, torch.distributed as dist
def save(state, path):
    torch.save(state, path)
    dist.barrier()
""",
    ),
    save(
        "removes the old file first",
        "gap",
        (
            "        os.replace(other",
            "        path.unlink(missing_ok=True)\n        os.replace(other",
        ),
    ),
    save(
        "waits for the disk while a small file is still in Python's buffer",
        "unsynced",
        ("import os, torch", "import io, os, torch"),
        (
            "            torch.save(state, file)\n            file.flush()\n",
            "            content = io.BytesIO()\n            torch.save(state, content)\n"
            "            file.write(content.getvalue())\n",
        ),
    ),
    save(
        "writes in the folder for temporary files",
        "other-folder",
        (
            'path.with_name(path.name + ".new")',
            'path.parent.parent / f"{os.getpid()}.new"',
        ),
    ),
    save(
        "the barrier is before the save",
        "no-wait",
        ("    dist.barrier()\n", ""),
        ("    other =", "    dist.barrier()\n    other ="),
    ),
    save("only rank 0 comes to the barrier", "deadlock", ("    dist.b", "        dist.b")),
    save("saves, but nothing else", "not-saved", ("        os.replace(other, path)\n", "")),
    save(
        "saves a part of the state",
        "other-state",
        ("torch.save(state, file)", 'torch.save(state["weights"], file)'),
    ),
    save(
        "every rank renames the file",
        "raised",
        ("        os.replace(other, path)\n    dist.b", "    os.replace(other, path)\n    dist.b"),
    ),
    Answer(
        "08.1",
        "unusual: pickled in memory first, low-level calls, and told by an all-reduce",
        None,
        """
import io, os, tempfile, torch, torch.distributed as dist
def save(state, path):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    done = torch.zeros(1)
    if not dist.get_rank():
        handle, name = tempfile.mkstemp(dir=path.parent)
        view = buffer.getbuffer()
        while len(view):
            view = view[os.write(handle, view[:1000]) :]
        os.fsync(handle)
        os.close(handle)
        os.rename(name, path)
        done += 1
    dist.all_reduce(done)
    assert done == 1
""",
    ),
    Answer(
        "08.1",
        "unusual: a file saved by name, opened once more for the sync, then a broadcast",
        None,
        """
import os, torch, torch.distributed as dist
def save(state, path):
    if dist.get_rank() == 0:
        new = path.parent / "next.pt"
        torch.save(state, new)
        handle = os.open(new, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
        new.replace(path)
    dist.broadcast_object_list([None], src=0)
""",
    ),
    Answer(
        "08.1",
        "unusual: the library's own",
        None,
        "from ddp_lessons.checkpoint import save\n",
    ),
    altered("08.1", "appends to what is there", "after-kill", ('"wb"', '"ab"')),
    altered(
        "08.1",
        "unusual: writes over what was left, and cuts it to length",
        None,
        OVER,
        ("            file.flush()\n", "            file.truncate()\n"),
    ),
    Answer(
        "08.1",
        "unusual: a folder of its own below, with names imported from os",
        None,
        """
import tempfile, torch, torch.distributed as dist
from os import fsync, replace
def save(state, path):
    if dist.get_rank() == 0:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            with open(f"{folder}/state", "wb") as file:
                torch.save(state, file)
                file.flush()
                fsync(file.fileno())
            replace(f"{folder}/state", path)
    dist.barrier()
""",
    ),
    Answer(
        "08.1",
        "unusual: in a thread",
        None,
        """
import os, torch, torch.distributed as dist
from concurrent.futures import ThreadPoolExecutor
def write(state, path):
    other = path.with_suffix(".other")
    with open(other, "wb") as file:
        torch.save(state, file)
        os.fdatasync(file.fileno())
    other.replace(path)
def save(state, path):
    if dist.get_rank() == 0:
        with ThreadPoolExecutor(1) as threads:
            threads.submit(write, state, path).result()
    dist.barrier()
""",
    ),
    altered(
        "08.1",
        "removes all that any save may have left",
        "left-over",
        (
            "        with",
            "        for old in path.parent.glob('*.new'): old.unlink()\n        with",
        ),
    ),
]
