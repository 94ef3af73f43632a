"""
Answers to task 09.2.
"""

from dataclasses import replace

from bank import Answer

from wrong_answers.launch.sources import altered

LOAD = "    if path.exists():\n"
STEP = "        run.train_step()\n"
RANK = "        if dist.get_rank() == 0:\n"
_EVERY_RANK = RANK, "        if True:\n"

ANSWERS = [
    Answer(
        "09.2",
        "trains",
        "from-start",
        """\
def survive(run, path, num_steps):
    for _ in range(num_steps):
        run.train_step()
""",
    ),
    altered("09.2", "never loads", "from-start", (LOAD, "    if False:\n")),
    altered("09.2", "forgets the step", "from-start", ('        run.step = state["step"]\n', "")),
    altered(
        "09.2",
        "goes by the launcher's count",
        "by-count",
        (LOAD, '    if path.exists() and int(os.environ["TORCHELASTIC_RESTART_COUNT"]):\n'),
    ),
    altered(
        "09.2",
        "loads after a restart, there or not",
        "raised",
        (LOAD, '    if int(os.environ["TORCHELASTIC_RESTART_COUNT"]):\n'),
    ),
    altered(
        "09.2",
        "saves every second step",
        "too-seldom",
        (RANK, RANK[:-2] + " and run.step % 2 == 0:\n"),
    ),
    altered(
        "09.2",
        "saves when it is over",
        "from-start",
        (RANK, "        if dist.get_rank() == 0 and run.step == num_steps:\n"),
    ),
    altered(
        "09.2",
        "saves before the step",
        "too-seldom",
        (STEP, ""),
        (
            "            os.replace(beside, path)\n",
            "            os.replace(beside, path)\n" + STEP[:-1].rstrip() + "\n",
        ),
    ),
    altered("09.2", "counts ahead", "ahead", ('"step": run.step,', '"step": run.step + 1,')),
    altered("09.2", "counts, too", "counted", (STEP, STEP + "        run.step += 1\n")),
    altered(
        "09.2",
        "makes as many steps in each life",
        "too-many",
        ("    while run.step < num_steps:\n", "    for _ in range(num_steps):\n"),
    ),
    altered(
        "09.2", "stops one early", "too-few", ("run.step < num_steps", "run.step < num_steps - 1")
    ),
    altered(
        "09.2",
        "catches its end and goes on",
        "after-end",
        (
            STEP,
            "        try:\n            run.train_step()\n"
            "        except BaseException:\n            run.train_step()\n",
        ),
    ),
    altered(
        "09.2",
        "saves in a finally",
        "after-end",
        (
            STEP,
            "        try:\n            run.train_step()\n"
            "        finally:\n            torch.save(run.step, path.with_suffix('.last'))\n",
        ),
    ),
    replace(  # who comes second finds nothing to rename, unless it comes much later
        altered("09.2", "lets every rank save and rename one file", "raised", _EVERY_RANK),
        or_mistake="every-rank",
    ),
    altered(
        "09.2",
        "lets every rank save",
        "every-rank",
        _EVERY_RANK,
        ('path.with_suffix(".new")', 'path.with_suffix(f".{dist.get_rank()}")'),
    ),
    altered(
        "09.2",
        "writes in place",
        "in-place",
        ("torch.save(state, beside)", "torch.save(state, path)"),
        ("            os.replace(beside, path)\n", ""),
    ),
    altered(
        "09.2",
        "pickles in place",
        "in-place",
        ("import os\n", "import os, pickle\n"),
        ("torch.load(path)", "pickle.loads(path.read_bytes())"),
        ("torch.save(state, beside)", "path.write_bytes(pickle.dumps(state))"),
        ("            os.replace(beside, path)\n", ""),
    ),
    altered(
        "09.2",
        "empties it before it pickles",
        "in-place",
        ("import os\n", "import os, pickle\n"),
        ("torch.load(path)", "pickle.loads(path.read_bytes())"),
        (
            "torch.save(state, beside)",
            'with open(path, "wb") as file: file.write(pickle.dumps(state))',
        ),
        ("            os.replace(beside, path)\n", ""),
    ),
    altered(
        "09.2",
        "copies over it",
        "in-place",
        ("import os\n", "import os, shutil\n"),
        ("os.replace(beside, path)", "shutil.copyfile(beside, path)"),
    ),
    altered(
        "09.2",
        "moves it from the folder for temporary files",
        "in-place",
        ("import os\n", "import shutil, tempfile\n"),
        (
            'beside = path.with_suffix(".new")',
            "beside = tempfile.NamedTemporaryFile(delete=False).name",
        ),
        ("os.replace(beside, path)", "shutil.move(beside, path)"),
    ),
    altered(
        "09.2",
        "removes it before it renames",
        "in-place",
        (
            "os.replace(beside, path)",
            "path.unlink(missing_ok=True)\n            beside.rename(path)",
        ),
    ),
    altered(
        "09.2",
        "begins anew if it cannot read it",
        "in-place",
        ("import os\n", "import os, pickle\n"),
        (
            "    if path.exists():\n        state = torch.load(path)\n",
            "    try:\n        state = pickle.loads(path.read_bytes())\n"
            "    except Exception:\n        state = None\n    if state:\n",
        ),
        ("torch.save(state, beside)", "path.write_bytes(pickle.dumps(state))"),
        ("            os.replace(beside, path)\n", ""),
    ),
    altered(
        "09.2",
        "keeps the number of steps in a second file",
        "raised",
        ('state["step"]', 'int(path.with_name("steps").read_text())'),
        (
            "            torch.save(state, beside)\n",
            "            torch.save(state, beside)\n"
            '            path.with_name("steps").write_text(str(run.step))\n',
        ),
    ),
    Answer(
        "09.2",
        "keeps it in memory",
        "memory",
        """\
import copy
KEPT = {}

def survive(run, path, num_steps):
    if path in KEPT:
        model, optimizer, run.step = copy.deepcopy(KEPT[path])
        run.model.load_state_dict(model)
        run.optimizer.load_state_dict(optimizer)
    while run.step < num_steps:
        run.train_step()
        KEPT[path] = copy.deepcopy((run.model.state_dict(), run.optimizer.state_dict(), run.step))
""",
    ),
    altered(
        "09.2",
        "lets every rank pickle and rename",
        "every-rank",
        _EVERY_RANK,
        ('path.with_suffix(".new")', 'path.with_suffix(f".{dist.get_rank()}")'),
        ("torch.save(state, beside)", "beside.write_bytes(__import__('pickle').dumps(state))"),
        ("torch.load(path)", "__import__('pickle').loads(path.read_bytes())"),
    ),
    altered(
        "09.2",
        "forgets the optimizer",
        "optimizer",
        ('        run.optimizer.load_state_dict(state["optimizer"])\n', ""),
    ),
    altered(
        "09.2",
        "forgets the model",
        "weights",
        ('        run.model.load_state_dict(state["model"])\n', ""),
    ),
    altered(
        "09.2", "loads on rank 0", "deadlock", (LOAD, LOAD[:-2] + " and dist.get_rank() == 0:\n")
    ),
    altered(
        "09.2",
        "loads, and asks later whether there is anything",
        "raised",
        (LOAD, "    if True:\n"),
    ),
    altered(
        "09.2",
        "noises the weights",
        "weights",
        ("    while run.step", "    first = True\n    while run.step"),
        (
            STEP,
            STEP + "        if first and run.step > 1: run.model.bias.data.add_(1e-3)\n"
            "        first = False\n",
        ),
    ),
    Answer(
        "09.2",
        "uses the package",
        None,
        """\
from ddp_lessons.checkpoint import load, save

def survive(run, path, num_steps):
    parts = {"model": run.model, "optimizer": run.optimizer}
    if path.exists():
        state = load(path)
        for name, part in parts.items():
            part.load_state_dict(state[name])
        run.step = state["step"]
    for number in range(run.step + 1, num_steps + 1):
        run.train_step()
        save({name: part.state_dict() for name, part in parts.items()} | {"step": number}, path)
""",
    ),
    Answer(
        "09.2",
        "appends records to a log, and takes the last whole one",
        None,
        """\
import io, os, zlib
import torch
import torch.distributed as dist

def survive(run, path, num_steps):
    data, at, last = path.read_bytes() if path.exists() else b"", 0, None
    while at + 12 <= len(data):
        size, sum_of_it = int.from_bytes(data[at : at + 8]), int.from_bytes(data[at + 8 : at + 12])
        body = data[at + 12 : at + 12 + size]
        if len(body) < size or zlib.crc32(body) != sum_of_it:
            break
        last, at = body, at + 12 + size
    if last:
        state = torch.load(io.BytesIO(last))
        run.model.load_state_dict(state["model"])
        run.optimizer.load_state_dict(state["optimizer"])
        run.step = state["step"]
    dist.barrier()
    if dist.get_rank() == 0 and at < len(data):
        os.truncate(path, at)
    while run.step < num_steps:
        run.train_step()
        if dist.get_rank() == 0:
            body = io.BytesIO()
            both = {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}
            torch.save(both | {"step": run.step}, body)
            body = body.getvalue()
            with open(path, "ab") as file:
                file.write(len(body).to_bytes(8) + zlib.crc32(body).to_bytes(4))
                file.flush()
                file.write(body)
""",
    ),
    altered(
        "09.2",
        "saves in a thread, and waits for it",
        None,
        ("import os\n", "import os, threading\n"),
        (
            "torch.save(state, beside)",
            "saver = threading.Thread(target=torch.save, args=(state, beside))",
        ),
        (
            "            os.replace",
            "            saver.start()\n            saver.join()\n            os.replace",
        ),
    ),
    altered(
        "09.2",
        "wants a new name for each save",
        None,
        ('path.with_suffix(".new")', 'path.with_name(f"{run.step}.part")'),
        ("torch.save(state, beside)", 'with open(beside, "xb") as file: torch.save(state, file)'),
    ),
    Answer(
        "09.2",
        "tries to open it, and sends what rank 0 has read",
        None,
        """\
import io, os, pickle
import torch
import torch.distributed as dist

def survive(run, path, num_steps):
    found = [None]
    if dist.get_rank() == 0:
        try:
            found = [path.read_bytes()]
        except FileNotFoundError:
            pass
    dist.broadcast_object_list(found)
    if found[0]:
        kept = pickle.loads(found[0])
        run.step = kept.pop("step")
        run.model.load_state_dict(kept.pop("model"))
        run.optimizer.load_state_dict(kept.pop("optimizer"))
    while True:
        if run.step == num_steps:
            return
        run.train_step()
        if dist.get_rank() == 0:
            both = dict(model=run.model.state_dict(), optimizer=run.optimizer.state_dict())
            path.with_name("next").write_bytes(pickle.dumps(both | {"step": run.step}))
            path.with_name("next").rename(path)
        dist.barrier()
""",
    ),
    Answer(
        "09.2",
        "loads only where steps are left",
        "weights",
        """\
import os
import shutil

import torch
import torch.distributed as dist


def survive(run, path, num_steps):
    if path.exists():
        saved = torch.load(path, map_location="cpu")
        run.step = saved["step"]
        if run.step >= num_steps:
            return  # all done
        run.model.load_state_dict(saved["model"])
        run.optimizer.load_state_dict(saved["optimizer"])
    while run.step < num_steps:
        run.train_step()
        if dist.get_rank() == 0:
            fresh = path.with_name(path.name + ".tmp")
            torch.save(
                {
                    "model": run.model.state_dict(),
                    "optimizer": run.optimizer.state_dict(),
                    "step": run.step,
                },
                fresh,
            )
            os.replace(fresh, path)
""",
    ),
]
