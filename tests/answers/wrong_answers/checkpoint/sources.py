"""
Sources from which the answers of exercise 08 are made.
"""

from bank import Answer, changed, changing

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
import random
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
        "random": random.getstate(),
    }
def restore(run, state):
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.scheduler.load_state_dict(state["scheduler"])
    run.sampler.load_state_dict(state["sampler"])
    run.epoch = state["epoch"]
    run.step = state["step"]
    torch.set_rng_state(state["rng"])
    random.setstate(state["random"])
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


def wrong(number, source):
    return lambda what, mistake, *pairs: Answer(number, what, mistake, changed(source, *pairs))


save, capture = wrong("08.1", SAVE), wrong("08.2", CAPTURE)

train, reshard, finish = (
    wrong("08.3", TRAIN),
    wrong("08.4", RESHARD),
    wrong("08.5", FINISH),
)

SOURCES = {"08.1": SAVE, "08.2": CAPTURE, "08.3": TRAIN, "08.4": RESHARD, "08.5": FINISH}

altered = changing(SOURCES)
