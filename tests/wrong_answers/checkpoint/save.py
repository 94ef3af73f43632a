"""
Answers to exercise 08, wrong ones and unusual right ones.
"""

from bank import Answer, changed

SAVE = """
import os, torch, torch.distributed as dist
def save(state, path):
    other = path.with_name(path.name + ".new")
    if dist.get_rank() == 0:
        with open(other, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(other, path)
    dist.barrier()
"""

CAPTURE = """
import torch
def capture(run):
    return {
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "scheduler": run.scheduler.state_dict(),
        "sampler": run.sampler.state_dict(),
        "epoch": run.epoch,
        "step": run.step,
        "rng": torch.get_rng_state(),
    }
def restore(run, state):
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.scheduler.load_state_dict(state["scheduler"])
    run.sampler.load_state_dict(state["sampler"])
    run.epoch = state["epoch"]
    run.step = state["step"]
    torch.set_rng_state(state["rng"])
"""

TRAIN = """
def train(run, batches, train_step, saves, num_epochs, every):
    saves.load(run)
    while run.epoch < num_epochs:
        run.sampler.set_epoch(run.epoch)
        for batch in batches:
            train_step(run, batch)
            if run.step % every == 0:
                saves.save(run)
        run.epoch += 1
"""

RESHARD = """
import torch.distributed as dist
def reshard(own, num_rows, table, read):
    size = -(-num_rows // dist.get_world_size())
    begin = dist.get_rank() * size
    end = begin + len(own)
    for name, start, stop in table:
        low, high = max(start, begin), min(stop, end)
        if low < high:
            own[low - begin : high - begin] = read(name, low - start, high - start)
"""

FINISH = """
import contextlib
import torch.distributed as dist
from torch.nn.functional import cross_entropy
def finish(run, saves, images, labels, batches, micro_batch, every):
    saves.load(run, exact=False)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for batch in batches[run.step :]:
        parts = batch[rank::world_size].split(micro_batch)
        for part in parts:
            last = part is parts[-1]
            with contextlib.nullcontext() if last else run.model.no_sync():
                loss = cross_entropy(run.model(images[part]), labels[part])
                (loss / len(parts)).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
        run.step += 1
        if run.step % every == 0:
            saves.save_sharded(run)
"""


def _wrong(number, source):
    return lambda what, mistake, *pairs: Answer(number, what, mistake, changed(source, *pairs))


_save, _capture = _wrong("08.1", SAVE), _wrong("08.2", CAPTURE)
_train, _reshard, _finish = (
    _wrong("08.3", TRAIN),
    _wrong("08.4", RESHARD),
    _wrong("08.5", FINISH),
)

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

_LOOP = "    while run.epoch < num_epochs:\n"

ANSWERS = [
    # 08.1
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
    _save(
        "every rank writes a file of its own, one renames",
        "every-rank",
        (
            '    if dist.get_rank() == 0:\n        with open(other, "wb")',
            '    other = other.with_suffix(f".{dist.get_rank()}")\n'
            '    if True:\n        with open(other, "wb")',
        ),
        ("        os.replace", "        if dist.get_rank() == 0: os.replace"),
    ),
    _save(
        "removes the old file first",
        "gap",
        (
            "        os.replace(other",
            "        path.unlink(missing_ok=True)\n        os.replace(other",
        ),
    ),
    _save(
        "copies where it should rename",
        "in-place",
        ("import os,", "import os, shutil,"),
        ("os.replace(other", "shutil.copyfile(other"),
    ),
    _save("does not wait for the disk", "unsynced", (_SYNC, "")),
    _save(
        "syncs before it writes",
        "unsynced",
        (_SYNC, ""),
        ("            torch.save", "            os.fsync(file.fileno())\n            torch.save"),
    ),
    _save(
        "writes in the folder for temporary files",
        "other-folder",
        (
            'path.with_name(path.name + ".new")',
            'path.parent.parent / f"{os.getpid()}.new"',
        ),
    ),
    _save("nobody waits for rank 0", "no-wait", ("    dist.barrier()\n", "")),
    _save(
        "the barrier is before the save",
        "no-wait",
        ("    dist.barrier()\n", ""),
        ("    other =", "    dist.barrier()\n    other ="),
    ),
    _save("only rank 0 comes to the barrier", "deadlock", ("    dist.b", "        dist.b")),
    _save("saves, but nothing else", "not-saved", ("        os.replace(other, path)\n", "")),
    _save(
        "the last rank saves its own state",
        "every-rank",
        ("dist.get_rank() == 0", "dist.get_rank() == dist.get_world_size() - 1"),
    ),
    _save(
        "saves a part of the state",
        "other-state",
        ("torch.save(state, file)", 'torch.save(state["weights"], file)'),
    ),
    _save(
        "every rank renames the file",
        "raised",
        ("        os.replace(other, path)\n    dist.b", "    os.replace(other, path)\n    dist.b"),
    ),
    _save(
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
    # 08.2
    Answer(
        "08.2",
        "weights only",
        "weights-only",
        """
def capture(run):
    return run.model.state_dict()
def restore(run, state):
    run.model.load_state_dict(state)
""",
    ),
    _capture(
        "forgets the optimizer",
        "optimizer",
        ('    run.optimizer.load_state_dict(state["optimizer"])\n', ""),
    ),
    _capture(
        "forgets the schedule",
        "schedule",
        ('    run.scheduler.load_state_dict(state["scheduler"])\n', ""),
    ),
    _capture(
        "forgets the place in the epoch",
        "place",
        ('    run.sampler.load_state_dict(state["sampler"])\n', ""),
    ),
    _capture("forgets the epoch", "place", ('    run.epoch = state["epoch"]\n', "")),
    _capture("forgets the step", "step", ('    run.step = state["step"]\n', "")),
    _capture("forgets the noise", "noise", ('    torch.set_rng_state(state["rng"])\n', "")),
    _capture(
        "seeds the noise anew",
        "noise",
        ('torch.set_rng_state(state["rng"])', 'torch.manual_seed(state["step"])'),
    ),
    _capture(
        "rank 0's random numbers for all",
        "other-rank",
        ("import torch\n", "import torch, torch.distributed as dist\n"),
        (
            "    return {",
            "    rng = torch.get_rng_state()\n    dist.broadcast(rng, src=0)\n    return {",
        ),
        ("torch.get_rng_state(),", "rng,"),
    ),
    _capture("saves the optimizer itself", "code", ("run.optimizer.state_dict()", "run.optimizer")),
    _capture(
        "draws a number to remember the noise by",
        "capture-changes",
        ("torch.get_rng_state()", "torch.randn(1)"),
        ('torch.set_rng_state(state["rng"])', "pass"),
    ),
    _capture(
        "restore has another name", "missing", ("def restore(", "restore = None\n\n\ndef put_back(")
    ),
    _capture("a key is misspelt", "raised", ('state["scheduler"]', 'state["schedule"]')),
    _capture(
        "forgets to restore the weights",
        "weights",
        ('    run.model.load_state_dict(state["model"])\n', ""),
    ),
    _capture(
        "makes a new optimizer, which the schedule does not know",
        "new-object",
        (
            "    run.optimizer.load",
            "    run.optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1)\n"
            "    run.optimizer.load",
        ),
    ),
    Answer(
        "08.2",
        "unusual: a list over the ranks, gathered, and parts by name",
        None,
        """
import torch, torch.distributed as dist
NAMES = ["sampler", "scheduler", "optimizer", "model"]
def capture(run):
    rngs = [None] * dist.get_world_size()
    dist.all_gather_object(rngs, torch.random.get_rng_state())
    own = [getattr(run, name).state_dict() for name in NAMES]
    return [rngs, run.step, run.epoch, *own]
def restore(run, state):
    rngs, run.step, run.epoch, *own = state
    for name, part in zip(NAMES, own):
        getattr(run, name).load_state_dict(part)
    torch.random.set_rng_state(rngs[dist.get_rank()])
""",
    ),
    Answer(
        "08.2",
        "unusual: the library's own",
        None,
        "from ddp_lessons.checkpoint import capture, restore\n",
    ),
    # 08.3
    _train("begins from the start", "from-start", ("    saves.load(run)\n", "")),
    _train(
        "loads, and begins at epoch 0 all the same",
        "epoch-behind",
        (_LOOP, "    for epoch in range(num_epochs):\n"),
        ("set_epoch(run.epoch)", "set_epoch(epoch)"),
        ("        run.epoch += 1\n", ""),
    ),
    _train(
        "begins the saved epoch again",
        "epoch-anew",
        (
            "        run.sampler.set_epoch(run.epoch)\n",
            "        run.sampler.set_epoch(-1)\n        run.sampler.set_epoch(run.epoch)\n",
        ),
    ),
    _train(
        "begins an epoch again if nothing is left of it",
        "after-end",
        (
            "        for batch in batches:\n",
            "        if not len(run.sampler):\n"
            "            run.sampler.set_epoch(-1)\n"
            "            run.sampler.set_epoch(run.epoch)\n"
            "        for batch in batches:\n",
        ),
    ),
    _train(
        "saves before the step",
        "too-seldom",
        ("            train_step(run, batch)\n", ""),
        ("            if run.step % every == 0:", "            if run.step % every == every - 1:"),
        ("saves.save(run)\n", "saves.save(run)\n            train_step(run, batch)\n"),
    ),
    _train(
        "counts the epoch before it runs it",
        "lost",
        (
            "        run.sampler.set_epoch(run.epoch)\n",
            "        run.sampler.set_epoch(run.epoch)\n        run.epoch += 1\n",
        ),
        (
            "                saves.save(run)\n        run.epoch += 1\n",
            "                saves.save(run)\n",
        ),
    ),
    _train(
        "never tells the sampler the epoch",
        "alike",
        ("        run.sampler.set_epoch(run.epoch)\n", ""),
    ),
    _train(
        "skips by hand what the sampler skips already",
        "lost",
        ("    saves.load(run)\n", "    saves.load(run)\n    done = run.step\n    num = 0\n"),
        (
            "            train_step",
            "            num += 1\n            if num <= done % 3: continue\n"
            "            train_step",
        ),
    ),
    _train(
        "saves only when an epoch is over",
        "too-seldom",
        ("            if run.step % every == 0:\n                saves.save(run)\n", ""),
        ("        run.epoch += 1\n", "        run.epoch += 1\n        saves.save(run)\n"),
    ),
    _train(
        "saves after every step",
        "too-often",
        ("            if run.step % every == 0:", "            if True:"),
    ),
    _train(
        "saves in a finally",
        "saves-dead",
        (
            "            train_step(run, batch)\n",
            "            try:\n                train_step(run, batch)\n"
            "            except BaseException:\n                saves.save(run)\n"
            "                raise\n",
        ),
    ),
    _train(
        "only rank 0 saves",
        "deadlock",
        ("def train", "import torch.distributed as dist\ndef train"),
        ("if run.step % every == 0:", "if run.step % every == 0 and dist.get_rank() == 0:"),
    ),
    _train(
        "saves the epoch as done, and the place at its start",
        "lost",
        (
            "                saves.save(run)\n        run.epoch += 1\n",
            "                run.epoch += 1\n                saves.save(run)\n"
            "                run.epoch -= 1\n        run.epoch += 1\n",
        ),
    ),
    Answer(
        "08.3",
        "unusual: a generator of steps, and the sampler's epoch in a for loop",
        None,
        """
def rest(run, batches, num_epochs):
    for run.epoch in range(run.epoch, num_epochs):
        run.sampler.set_epoch(run.epoch)
        yield from batches
    run.epoch = num_epochs
def train(run, batches, train_step, saves, num_epochs, every):
    saves.load(run)
    for batch in rest(run, batches, num_epochs):
        train_step(run, batch)
        if not run.step % every:
            saves.save(run)
""",
    ),
    Answer(
        "08.3",
        "unusual: sharded saves, through the run's own count of epochs",
        None,
        """
def train(run, batches, train_step, saves, num_epochs, every):
    saves.load(run)
    for epoch in run.remaining_epochs(num_epochs):
        run.sampler.set_epoch(epoch)
        for batch in batches:
            train_step(run, batch)
            if run.step % every == 0:
                saves.save_sharded(run)
""",
    ),
    # 08.4
    Answer(
        "08.4",
        "reads everything, and cuts",
        "reads-more",
        """
import torch, torch.distributed as dist
def reshard(own, num_rows, table, read):
    table = sorted(table, key=lambda piece: piece[1:])
    whole = torch.cat([read(name, 0, stop - start) for name, start, stop in table])
    begin = dist.get_rank() * -(-num_rows // dist.get_world_size())
    own.copy_(whole[begin : begin + len(own)])
""",
    ),
    _reshard(
        "rounds down",
        "other-rows",
        ("-(-num_rows // dist.get_world_size())", "num_rows // dist.get_world_size()"),
    ),
    _reshard(
        "counts a file's rows from the whole", "raised", ("low - start, high - start", "low, high")
    ),
    _reshard(
        "writes from the first row on",
        "raised",
        ("own[low - begin : high - begin]", "own[low:high]"),
    ),
    _reshard(
        "reads one row too few of each file",
        "missing-rows",
        ("read(name, low - start, high - start)", "read(name, low - start, high - start - 1)"),
        ("own[low - begin : high - begin]", "own[low - begin : high - begin - 1]"),
    ),
    Answer(
        "08.4",
        "takes the file of its own number",
        "missing-rows",
        """
import torch.distributed as dist
def reshard(own, num_rows, table, read):
    name, start, stop = table[dist.get_rank()]
    own[: stop - start] = read(name, 0, stop - start)
""",
    ),
    Answer(
        "08.4",
        "makes a new tensor",
        "empty",
        RESHARD.replace("    size =", "    own = own.clone()\n    size ="),
    ),
    Answer(
        "08.4",
        "takes the files as they come",
        "order",
        """
import torch, torch.distributed as dist
def reshard(own, num_rows, table, read):
    begin = dist.get_rank() * -(-num_rows // dist.get_world_size())
    end, parts = begin + len(own), []
    for name, start, stop in table:
        low, high = max(start, begin), min(stop, end)
        if low < high:
            parts.append(read(name, low - start, high - start))
    if parts:
        own.copy_(torch.cat(parts))
""",
    ),
    Answer(
        "08.4",
        "rank 0 reads, and sends to all",
        "forbidden",
        """
import torch, torch.distributed as dist
def reshard(own, num_rows, table, read):
    whole = torch.zeros(num_rows, own.shape[1])
    if dist.get_rank() == 0:
        for name, start, stop in table:
            whole[start:stop] = read(name, 0, stop - start)
    dist.broadcast(whole, src=0)
    begin = dist.get_rank() * -(-num_rows // dist.get_world_size())
    own.copy_(whole[begin : begin + len(own)])
""",
    ),
    Answer(
        "08.4",
        "deals rows out in turn",
        "values",
        """
import torch.distributed as dist
def reshard(own, num_rows, table, read):
    for place in range(len(own)):
        row = dist.get_rank() + place * dist.get_world_size()
        for name, start, stop in table:
            if start <= row < stop:
                own[place] = read(name, row - start, row - start + 1)[0]
""",
    ),
    Answer(
        "08.4",
        "unusual: row by row, sets of rows, from the last to the first",
        None,
        """
import torch, torch.distributed as dist
def reshard(own, num_rows, table, read):
    parts = torch.arange(num_rows).split(-(-num_rows // dist.get_world_size()))
    mine = parts[dist.get_rank()].tolist() if dist.get_rank() < len(parts) else []
    for place, row in reversed(list(enumerate(mine))):
        for name, start, stop in table:
            if row in range(start, stop):
                own[place] = read(name, row - start, row - start + 1)[0]
""",
    ),
    # 08.5
    _finish("begins from the start", "from-start", ("    saves.load(run, exact=False)\n", "")),
    _finish("wants as many ranks as before", "raised", ("run, exact=False", "run")),
    _finish(
        "loads, and takes the first batches again", "steps", ("batches[run.step :]", "batches")
    ),
    _finish(
        "syncs each micro-batch",
        "cost",
        ("contextlib.nullcontext() if last else run.model.no_sync()", "contextlib.nullcontext()"),
    ),
    _finish("does not divide", "undivided", ("(loss / len(parts)).backward()", "loss.backward()")),
    _finish(
        "divides by the ranks as well",
        "gradient",
        ("loss / len(parts)", "loss / len(parts) / world_size"),
    ),
    _finish("keeps old gradients", "gradient", ("        run.optimizer.zero_grad()\n", "")),
    _finish(
        "every rank takes the whole batch", "all-samples", ("batch[rank::world_size]", "batch")
    ),
    _finish(
        "shares for four ranks, whatever there are",
        "few-samples",
        ("batch[rank::world_size]", "batch[rank::4]"),
    ),
    _finish("one large forward", "memory", (".split(micro_batch)", ".split(len(batch))")),
    _finish("rank 0 writes all alone", "whole-file", ("save_sharded", "save")),
    _finish(
        "saves before it counts",
        "uncounted",
        ("        run.step += 1\n", ""),
        (
            "            saves.save_sharded(run)\n",
            "            saves.save_sharded(run)\n        run.step += 1\n",
        ),
    ),
    _finish("never counts a step", "uncounted", ("        run.step += 1\n", "")),
    _finish(
        "saves at the end only",
        "save-steps",
        ("        if run.step % every == 0:\n            saves", "    if True:\n            saves"),
    ),
    _finish(
        "no rank talks",
        "gradient",
        ("contextlib.nullcontext() if last else run.model.no_sync()", "run.model.no_sync()"),
    ),
    _finish(
        "loads into another optimizer",
        "optimizer",
        ("import contextlib\n", "import contextlib, torch\n"),
        ("    rank, world", "    run.optimizer.state.clear()\n    rank, world"),
    ),
    _finish(
        "only rank 0 saves",
        "deadlock",
        ("if run.step % every == 0:", "if run.step % every == 0 and rank == 0:"),
    ),
    _finish(
        "saves when it dies",
        "saves-dead",
        (
            "                loss = cross_entropy(run.model(images[part]), labels[part])\n",
            "                try:\n"
            "                    loss = cross_entropy(run.model(images[part]), labels[part])\n"
            "                except BaseException:\n"
            "                    saves.save_sharded(run)\n"
            "                    raise\n",
        ),
    ),
    _finish(
        "shares otherwise after a restart",
        "values",
        ("    rank, world_size", "    first = run.step\n    rank, world_size"),
        ("batch[rank::", "batch.roll(first)[rank::"),
    ),
    _finish(
        "adds up the weights of all ranks, so that they are equal",
        "weights",
        (
            "    for batch in",
            "    for p in run.model.parameters():\n"
            "        dist.all_reduce(p.data)\n"
            "    for batch in",
        ),
    ),
    Answer(
        "08.5",
        "unusual: blocks of the batch, a sum over its length, the sync switched by a flag",
        None,
        """
import torch
import torch.distributed as dist
def finish(run, saves, images, labels, batches, micro_batch, every):
    saves.load(run, exact=False)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    criterion = torch.nn.CrossEntropyLoss(reduction="sum")
    while run.step < len(batches):
        run.optimizer.zero_grad(set_to_none=False)
        mine = batches[run.step].chunk(world_size)[rank]
        for start in range(0, len(mine), micro_batch):
            part = mine[start : start + micro_batch]
            run.model.require_backward_grad_sync = start + micro_batch >= len(mine)
            criterion(run.model(images[part]), labels[part]).div(len(mine)).backward()
        run.optimizer.step()
        run.step += 1
        if not run.step % every:
            saves.save_sharded(run)
""",
    ),
]
