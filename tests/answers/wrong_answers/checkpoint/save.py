"""
Answers to task 08.1.
"""

from bank import Answer

from wrong_answers.checkpoint.sources import altered, save

_SYNC = """            file.flush()
            os.fsync(file.fileno())
"""

_ONE_FILE = """
import torch, torch.distributed as dist
def save(state, path):
    if dist.get_rank() == 0:
        torch.save(state, path)
    dist.barrier()
"""

OVER = ('"wb"', '"r+b" if other.exists() else "wb"')

SYNC = """            file.flush()
            os.fsync(file.fileno())
"""

REPLACE = "        os.replace(other, path)\n"


def _synced(what, file):
    lines = f"        handle = os.open({file}, os.O_RDONLY)\n        os.fsync(handle)\n"
    return altered("08.1", what, "unsynced", (SYNC, ""), (REPLACE, lines + REPLACE))


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
        "every rank writes a file of its own, one renames",
        "every-rank",
        (
            '    if dist.get_rank() == 0:\n        with open(other, "wb")',
            '    other = other.with_suffix(f".{dist.get_rank()}")\n'
            '    if True:\n        with open(other, "wb")',
        ),
        ("        os.replace", "        if dist.get_rank() == 0: os.replace"),
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
        "copies where it should rename",
        "in-place",
        ("import os,", "import os, shutil,"),
        ("os.replace(other", "shutil.copyfile(other"),
    ),
    save("does not wait for the disk", "unsynced", (_SYNC, "")),
    save(
        "syncs before it writes",
        "unsynced",
        (_SYNC, ""),
        ("            torch.save", "            os.fsync(file.fileno())\n            torch.save"),
    ),
    save(
        "writes in the folder for temporary files",
        "other-folder",
        (
            'path.with_name(path.name + ".new")',
            'path.parent.parent / f"{os.getpid()}.new"',
        ),
    ),
    save("nobody waits for rank 0", "no-wait", ("    dist.barrier()\n", "")),
    save(
        "the barrier is before the save",
        "no-wait",
        ("    dist.barrier()\n", ""),
        ("    other =", "    dist.barrier()\n    other ="),
    ),
    save("only rank 0 comes to the barrier", "deadlock", ("    dist.b", "        dist.b")),
    save("saves, but nothing else", "not-saved", ("        os.replace(other, path)\n", "")),
    save(
        "the last rank saves its own state",
        "every-rank",
        ("dist.get_rank() == 0", "dist.get_rank() == dist.get_world_size() - 1"),
    ),
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
    save(
        "links, and leaves the other name",
        "left-over",
        ("os.replace(other, path)", "os.link(other, f'{other}2'); os.replace(other, path)"),
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
    _synced("syncs the folder", "path.parent"),
    _synced("syncs the old file", "path if path.exists() else path.parent"),
    altered(
        "08.1",
        "syncs a copy, and deletes it",
        "unsynced",
        ("import os,", "import os, shutil,"),
        (
            SYNC,
            "        copy = path.with_suffix('.copy')\n"
            "        shutil.copyfile(other, copy)\n"
            "        handle = os.open(copy, os.O_RDONLY)\n"
            "        os.fsync(handle)\n"
            "        os.remove(copy)\n",
        ),
    ),
    altered(
        "08.1",
        "syncs when the file has its name",
        "unsynced",
        (SYNC, ""),
        (
            REPLACE,
            REPLACE + "        handle = os.open(path, os.O_RDONLY)\n        os.fsync(handle)\n",
        ),
    ),
    altered("08.1", "appends to what is there", "after-kill", ('"wb"', '"ab"')),
    altered("08.1", "wants to be the first to make the file", "after-kill", ('"wb"', '"xb"')),
    altered("08.1", "writes over what was left", "after-kill", OVER),
    altered(
        "08.1",
        "gives the name to what was left",
        "after-kill",
        ("        with", "        if other.exists(): os.replace(other, path)\n        with"),
    ),
    altered(
        "08.1",
        "removes all that may be left",
        "neighbour",
        (
            "        with",
            "        for file in path.parent.iterdir():\n"
            "            if file != path: file.unlink()\n"
            "        with",
        ),
    ),
    altered(
        "08.1",
        "keeps a second name for the old file until the rename",
        "after-kill",
        (
            REPLACE,
            "        is_old = path.exists()\n"
            "        if is_old: os.link(path, f'{path}.bak')\n"
            + REPLACE
            + "        if is_old: os.remove(f'{path}.bak')\n",
        ),
    ),
    Answer(
        "08.1",
        "every rank pickles in memory, and renames",
        "every-rank",
        """
import io, os, tempfile, torch, torch.distributed as dist
def save(state, path):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(buffer.getbuffer())
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)
    dist.barrier()
""",
    ),
    altered(
        "08.1",
        "lets another program copy",
        "in-place",
        ("import os,", "import os, subprocess,"),
        (REPLACE, "        subprocess.run(['cp', other, path])\n        os.remove(other)\n"),
    ),
    Answer(
        "08.1",
        "writes in place in a thread",
        "in-place",
        """
import threading, torch, torch.distributed as dist
def save(state, path):
    if dist.get_rank() == 0:
        thread = threading.Thread(target=torch.save, args=(state, path))
        thread.start()
        thread.join()
    dist.barrier()
""",
    ),
    altered(
        "08.1",
        "keeps a second name for the old file",
        "left-over",
        (REPLACE, "        if path.exists(): os.link(path, f'{path}.bak')\n" + REPLACE),
    ),
    altered(
        "08.1",
        "pickles by itself",
        "other-state",
        ("import os,", "import os, pickle,"),
        ("torch.save(state, file)", "pickle.dump(state, file)"),
    ),
    altered(
        "08.1",
        "tells the others before the rename",
        "no-wait",
        (REPLACE, ""),
        ("    dist.barrier()\n", "    dist.barrier()\n    if dist.get_rank() == 0:\n" + REPLACE),
    ),
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
        "neighbour",
        (
            "        with",
            "        for old in path.parent.glob('*.new'): old.unlink()\n        with",
        ),
    ),
    altered(
        "08.1",
        "opens the file once more to sync it, and leaves it open",
        "left-open",
        (SYNC, "        os.fsync(os.open(other, os.O_RDONLY))\n"),
    ),
]
