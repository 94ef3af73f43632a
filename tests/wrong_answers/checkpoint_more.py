"""
More answers to exercise 08: what a kill leaves, what a state lacks, and saves at another moment.
"""

from bank import Answer, changing

from wrong_answers.checkpoint import CAPTURE, FINISH, RESHARD, SAVE, TRAIN

SOURCES = {"08.1": SAVE, "08.2": CAPTURE, "08.3": TRAIN, "08.4": RESHARD, "08.5": FINISH}

OVER = ('"wb"', '"r+b" if other.exists() else "wb"')
SYNC = """            file.flush()
            os.fsync(file.fileno())
"""
REPLACE = "        os.replace(other, path)\n"
KEEP = "KEPT = {}\ndef capture(run):\n"
STEP = "            train_step(run, batch)\n"
EPOCH = "        run.epoch += 1\n"
SAVED = "            if run.step % every == 0:\n                saves.save(run)\n"
SIZE = "    size = -(-num_rows // dist.get_world_size())\n    begin = dist.get_rank() * size\n"
LOAD = "    saves.load(run, exact=False)\n"
OPTIMIZE = "        run.optimizer.step()\n        run.optimizer.zero_grad()\n"
COUNT = "        run.step += 1\n"
SHARD = "        if run.step % every == 0:\n            saves.save_sharded(run)\n"
FORWARD = "                loss = cross_entropy(run.model(images[part]), labels[part])\n"


_changed = changing(SOURCES)


def _synced(what, file):
    lines = f"        handle = os.open({file}, os.O_RDONLY)\n        os.fsync(handle)\n"
    return _changed("08.1", what, "unsynced", (SYNC, ""), (REPLACE, lines + REPLACE))


ANSWERS = [
    # 08.1
    _synced("syncs the folder", "path.parent"),
    _synced("syncs the old file", "path if path.exists() else path.parent"),
    _changed(
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
    _changed(
        "08.1",
        "syncs when the file has its name",
        "unsynced",
        (SYNC, ""),
        (
            REPLACE,
            REPLACE + "        handle = os.open(path, os.O_RDONLY)\n        os.fsync(handle)\n",
        ),
    ),
    _changed("08.1", "appends to what is there", "after-kill", ('"wb"', '"ab"')),
    _changed("08.1", "wants to be the first to make the file", "after-kill", ('"wb"', '"xb"')),
    _changed("08.1", "writes over what was left", "after-kill", OVER),
    _changed(
        "08.1",
        "gives the name to what was left",
        "after-kill",
        ("        with", "        if other.exists(): os.replace(other, path)\n        with"),
    ),
    _changed(
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
    _changed(
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
    _changed(
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
    _changed(
        "08.1",
        "keeps a second name for the old file",
        "left-over",
        (REPLACE, "        if path.exists(): os.link(path, f'{path}.bak')\n" + REPLACE),
    ),
    _changed(
        "08.1",
        "pickles by itself",
        "other-state",
        ("import os,", "import os, pickle,"),
        ("torch.save(state, file)", "pickle.dump(state, file)"),
    ),
    _changed(
        "08.1",
        "tells the others before the rename",
        "no-wait",
        (REPLACE, ""),
        ("    dist.barrier()\n", "    dist.barrier()\n    if dist.get_rank() == 0:\n" + REPLACE),
    ),
    _changed(
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
    # 08.2
    _changed(
        "08.2",
        "keeps the random numbers in the process",
        "elsewhere",
        ("def capture(run):\n", KEEP + "    KEPT['rng'] = torch.get_rng_state()\n"),
        ('        "rng": torch.get_rng_state(),\n', ""),
        ('state["rng"]', "KEPT['rng']"),
    ),
    _changed(
        "08.2",
        "keeps the optimizer in the process",
        "elsewhere",
        (
            "def capture(run):\n",
            f"import copy\n{KEEP}    KEPT['it'] = copy.deepcopy(run.optimizer.state_dict())\n",
        ),
        ('        "optimizer": run.optimizer.state_dict(),\n', ""),
        ('state["optimizer"]', "KEPT['it']"),
    ),
    _changed(
        "08.2",
        "takes parameters for the model",
        "buffers",
        ("run.model.state_dict()", "[p.detach() for p in run.model.parameters()]"),
        (
            'run.model.load_state_dict(state["model"])',
            '[p.data.copy_(q) for p, q in zip(run.model.parameters(), state["model"])]',
        ),
    ),
    _changed(
        "08.2",
        "captures in eval mode",
        "capture-changes",
        ("    return {", "    run.model.eval()\n    return {"),
    ),
    _changed(
        "08.2",
        "empties gradients",
        "capture-changes",
        ("    return {", "    run.optimizer.zero_grad()\n    return {"),
    ),
    _changed(
        "08.2",
        "restores into eval mode",
        "mode",
        ("    run.epoch =", "    run.model.eval()\n    run.epoch ="),
    ),
    _changed(
        "08.2",
        "restores rank 0 only",
        "deadlock",
        ("import torch\n", "import torch, torch.distributed as dist\n"),
        ("    run.model.load", "    if dist.get_rank(): return\n    run.model.load"),
    ),
    _changed(
        "08.2",
        "draws after it has restored",
        "noise",
        (
            'torch.set_rng_state(state["rng"])',
            'torch.set_rng_state(state["rng"]); torch.randn(1)',
        ),
    ),
    _changed(
        "08.2",
        "restores the rate, not the momentum",
        "optimizer",
        (
            'run.optimizer.load_state_dict(state["optimizer"])',
            'run.optimizer.param_groups[0].update(lr=state["optimizer"]["param_groups"][0]["lr"])',
        ),
    ),
    _changed(
        "08.2",
        "begins the epoch again",
        "place",
        ("run.sampler.state_dict()", '{**run.sampler.state_dict(), "position": 0}'),
    ),
    _changed(
        "08.2",
        "keeps the larger number of steps",
        "step",
        ('run.step = state["step"]', 'run.step = max(run.step, state["step"])'),
    ),
    _changed(
        "08.2",
        "never goes back",
        "untouched",
        ("    run.model.load", "    if state['step'] < run.step: return\n    run.model.load"),
    ),
    _changed(
        "08.2",
        "moves the schedule on by as many steps",
        "schedule",
        ('    run.scheduler.load_state_dict(state["scheduler"])\n', ""),
        (
            "    run.optimizer.load",
            "    while run.scheduler.last_epoch < state['step']: run.scheduler.step()\n"
            "    run.optimizer.load",
        ),
    ),
    _changed(
        "08.2",
        "adds momentum to what is there",
        "optimizer",
        (
            "    run.optimizer.load",
            "    known = run.optimizer.state_dict()['state']\n"
            "    state['optimizer']['state'] = known | state['optimizer']['state']\n"
            "    run.optimizer.load",
        ),
    ),
    _changed(
        "08.2",
        "puts states where objects should be",
        "new-object",
        ('run.sampler.load_state_dict(state["sampler"])', 'run.sampler = state["sampler"]'),
    ),
    _changed(
        "08.2",
        "gives the model other parameters",
        "new-object",
        ('state["model"])', 'state["model"], assign=True)'),
    ),
    _changed(
        "08.2",
        "captures an array of numbers",
        "code",
        ("torch.get_rng_state()", "torch.get_rng_state().numpy()"),
        ('state["rng"]', 'torch.from_numpy(state["rng"])'),
    ),
    _changed(
        "08.2",
        "copies into parameters as into any tensor",
        "raised",
        (
            'run.model.load_state_dict(state["model"])',
            '[p.copy_(state["model"][name]) for name, p in run.model.named_parameters()]',
        ),
    ),
    _changed(
        "08.2",
        "sets the factor of momentum anew",
        "values",
        (
            "    run.scheduler.load",
            "    run.optimizer.param_groups[0].update(momentum=0.5, betas=(0.5, 0.9))\n"
            "    run.scheduler.load",
        ),
    ),
    _changed(
        "08.2",
        "unusual: a new optimizer, and a schedule that was made with it",
        None,
        (
            "    run.optimizer.load",
            "    optimizer = type(run.optimizer)(run.model.parameters(), lr=1.0)\n"
            "    run.optimizer, run.scheduler = optimizer, None\n"
            "    run.optimizer.load",
        ),
        (
            "    run.scheduler.load",
            "    run.scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)\n"
            "    run.scheduler.load",
        ),
    ),
    Answer(
        "08.2",
        "unusual: torch's functions for distributed states, and of the schedule one number",
        None,
        """
import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
def capture(run):
    model, optimizer = get_state_dict(run.model, run.optimizer)
    rest = [run.scheduler.last_epoch, run.sampler.state_dict(), run.epoch, run.step]
    return {"all": [model, optimizer, rest], "rng": torch.get_rng_state()}
def restore(run, state):
    model, optimizer, rest = state["all"]
    parts = {"model_state_dict": model, "optim_state_dict": optimizer}
    set_state_dict(run.model, run.optimizer, **parts)
    run.scheduler.last_epoch, place, run.epoch, run.step = rest
    run.sampler.load_state_dict(place)
    torch.set_rng_state(state["rng"])
""",
    ),
    _changed(
        "08.2",
        "unusual: the bare model, random numbers as a list",
        None,
        ("run.model.", "run.model.module."),
        ("torch.get_rng_state()", "torch.get_rng_state().tolist()"),
        ('state["rng"]', 'torch.tensor(state["rng"], dtype=torch.uint8)'),
    ),
    # 08.3
    _changed("08.3", "counts steps, too", "counted", (STEP, STEP + "            run.step += 1\n")),
    _changed(
        "08.3",
        "never moves run.epoch",
        "epoch-behind",
        ("    while run.epoch < num_epochs:", "    for epoch in range(run.epoch, num_epochs):"),
        ("set_epoch(run.epoch)", "set_epoch(epoch)"),
        (EPOCH, ""),
    ),
    _changed("08.3", "never counts an epoch", "alike", (EPOCH, "")),
    _changed(
        "08.3",
        "loads before each epoch",
        "loads-again",
        ("        run.sampler.set", "        saves.load(run)\n        run.sampler.set"),
    ),
    _changed("08.3", "makes each step twice", "twice", (STEP, STEP + STEP)),
    _changed("08.3", "counts epochs from 1", "other-epoch", ("(run.epoch)", "(run.epoch + 1)")),
    _changed(
        "08.3",
        "makes all epochs once more after a kill",
        "num-epochs",
        ("    while run.epoch < num_epochs:", "    for _ in range(num_epochs):"),
    ),
    _changed("08.3", "leaves out the last epoch", "num-epochs", ("num_epochs:", "num_epochs - 1:")),
    _changed("08.3", "makes one epoch too many", "num-epochs", ("epoch < num", "epoch <= num")),
    _changed(
        "08.3",
        "counts steps anew in each epoch",
        "too-seldom",
        ("for batch in batches", "for step, batch in enumerate(batches, 1)"),
        ("if run.step %", "if step %"),
    ),
    _changed(
        "08.3",
        "saves before the first step, too",
        "too-often",
        ("    saves.load(run)\n", "    saves.load(run)\n    saves.save(run)\n"),
    ),
    _changed("08.3", "makes a list of batches", "ahead", ("in batches:", "in list(batches):")),
    _changed(
        "08.3",
        "takes the next batch before the step",
        "ahead",
        (
            "        for batch in batches:\n" + STEP,
            "        rest = iter(batches)\n"
            "        following = next(rest, None)\n"
            "        while following is not None:\n"
            "            batch, following = following, next(rest, None)\n" + STEP,
        ),
    ),
    _changed(
        "08.3",
        "saves when it has the next batch",
        "ahead",
        (STEP + SAVED, SAVED.replace("if run", "if run.step and run") + STEP),
    ),
    _changed(
        "08.3",
        "unusual: a save more when all is done",
        None,
        (EPOCH, EPOCH + "    saves.save(run)\n"),
    ),
    # 08.4
    _changed("08.4", "shares as four ranks would", "other-rows", ("dist.get_world_size()", "4")),
    _changed(
        "08.4",
        "shares out evenly",
        "other-rows",
        (SIZE, "    begin = num_rows * dist.get_rank() // dist.get_world_size()\n"),
    ),
    _changed(
        "08.4",
        "gives the rest to the last",
        "raised",
        ("-(-num_rows // dist.get_world_size())", "num_rows // dist.get_world_size()"),
        (
            "    end = begin + len(own)\n",
            "    is_last = dist.get_rank() == dist.get_world_size() - 1\n"
            "    end = num_rows if is_last else begin + size\n",
        ),
    ),
    _changed(
        "08.4",
        "reads twice",
        "reads-more",
        ("            own[", "            read(name, low - start, high - start)\n            own["),
    ),
    Answer(
        "08.4",
        "opens the files by itself",
        "reads-less",
        """
import inspect, torch, torch.distributed as dist
def reshard(own, num_rows, table, read):
    root, whole = inspect.getclosurevars(read).nonlocals["root"], torch.zeros(num_rows, 3)
    for name, start, stop in table:
        whole[start:stop] = torch.load(root / name)
    begin = dist.get_rank() * -(-num_rows // dist.get_world_size())
    own.copy_(whole[begin : begin + len(own)])
""",
    ),
    _changed(
        "08.4",
        "gives own another memory",
        "empty",
        ("    size =", "    own.data = own.clone()\n    size ="),
    ),
    Answer(
        "08.4",
        "takes the files by their names",
        "order",
        """
import torch, torch.distributed as dist
def reshard(own, num_rows, table, read):
    begin = dist.get_rank() * -(-num_rows // dist.get_world_size())
    end, parts = begin + len(own), [own[:0]]
    for name, start, stop in sorted(table):
        low, high = max(start, begin), min(stop, end)
        if low < high:
            parts.append(read(name, low - start, high - start))
    own.copy_(torch.cat(parts))
""",
    ),
    _changed(
        "08.4",
        "unusual: ends by the number of rows",
        None,
        ("begin + len(own)", "min(begin + size, num_rows)"),
    ),
    # 08.5
    _changed(
        "08.5",
        "adds up the loss in each step",
        "other-talk",
        (
            OPTIMIZE,
            "        one = loss.detach().clone()\n        dist.all_reduce(one)\n" + OPTIMIZE,
        ),
    ),
    _changed(
        "08.5",
        "adds up the loss in each second step",
        "other-talk",
        (
            OPTIMIZE,
            "        one = loss.detach().clone()\n"
            "        if run.step % 2: dist.all_reduce(one)\n" + OPTIMIZE,
        ),
    ),
    _changed(
        "08.5",
        "has a barrier in each step",
        "other-talk",
        (OPTIMIZE, "        dist.barrier()\n" + OPTIMIZE),
    ),
    _changed(
        "08.5",
        "counts when it has saved",
        "uncounted",
        (COUNT + SHARD, SHARD.replace("run.step %", "(run.step + 1) %") + COUNT),
    ),
    _changed(
        "08.5",
        "counts and saves before the step",
        "counted-early",
        (OPTIMIZE + COUNT + SHARD, COUNT + SHARD + OPTIMIZE),
    ),
    _changed(
        "08.5",
        "computes in bfloat16",
        "rounded",
        ("import contextlib\n", "import contextlib, torch\n"),
        (
            FORWARD,
            "                with torch.autocast(images.device.type, dtype=torch.bfloat16):\n    "
            + FORWARD,
        ),
    ),
    _changed(
        "08.5",
        "takes over the shares of four ranks",
        "all-samples",
        ("import contextlib\n", "import contextlib, torch\n"),
        (
            "batch[rank::world_size]",
            "torch.cat([batch[one::4] for one in range(rank, 4, world_size)])",
        ),
    ),
    _changed(
        "08.5",
        "makes the rate smaller on fewer ranks",
        "other-update",
        (LOAD, LOAD + "    run.optimizer.param_groups[0]['lr'] *= dist.get_world_size() / 4\n"),
    ),
    _changed(
        "08.5",
        "saves before the first step, too",
        "save-steps",
        (LOAD, LOAD + "    saves.save_sharded(run)\n"),
    ),
    _changed("08.5", "saves after each step", "save-steps", ("run.step % every == 0", "True")),
    _changed("08.5", "unusual: saves in the background", None, ("save_sharded", "save_async")),
    _changed(
        "08.5",
        "unusual: averages all gradients as one tensor by itself",
        None,
        ("import contextlib\n", "import contextlib, torch\n"),
        ("contextlib.nullcontext() if last else ", ""),
        (
            OPTIMIZE,
            "        weights = list(run.model.parameters())\n"
            "        flat = torch.cat([p.grad.flatten() for p in weights]) / world_size\n"
            "        dist.all_reduce(flat)\n"
            "        for p, part in zip(weights, flat.split([p.numel() for p in weights])):\n"
            "            p.grad = part.view_as(p)\n" + OPTIMIZE,
        ),
    ),
    _changed(
        "08.5",
        "unusual: a barrier at the start, and a save more at the end",
        None,
        ("    rank, world_size", "    dist.barrier()\n    rank, world_size"),
        (SHARD, SHARD + "    saves.save_sharded(run)\n"),
    ),
]
