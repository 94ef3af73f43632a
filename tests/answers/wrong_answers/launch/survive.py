"""
Answers to task 09.2.
"""

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
        "other-step",
        (RANK, RANK[:-2] + " and run.step % 2 == 0:\n"),
    ),
    altered("09.2", "counts, too", "counted", (STEP, STEP + "        run.step += 1\n")),
    altered(
        "09.2",
        "makes as many steps in each life",
        "num-steps",
        ("    while run.step < num_steps:\n", "    for _ in range(num_steps):\n"),
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
        "lets every rank save",
        "every-rank",
        _EVERY_RANK,
        ('path.with_suffix(".new")', 'path.with_suffix(f".{dist.get_rank()}")'),
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
]
