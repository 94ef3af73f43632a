"""
Checkpoints as many guides write them. Each function has the name of the one that mends it.

Kept to be compared with: `save` loses the only copy when it is interrupted, and on several ranks
all write one file; `load` runs code that a file brings; what `capture` leaves out, a run misses.
"""

import torch


def save(state, path, group=None):
    """
    Write a state over the earlier one, on every rank that calls it.

    Lesson: 08_checkpoint, beside `checkpoint.save`.
    """
    torch.save(state, path)


def load(path, device="cpu", group=None):
    """
    Read a state and run whatever code the file brings.

    Lesson: 08_checkpoint, beside `checkpoint.load`.
    """
    return torch.load(path, map_location=device, weights_only=False)


def capture(run, group=None):
    """
    Return the weights, and the number of the epoch that was just run.

    Lesson: 08_checkpoint, beside `checkpoint.capture`.
    """
    return {"model": run.model.state_dict(), "epoch": run.epoch}


def restore(run, state, group=None):
    """
    Take over the weights, and start the saved epoch again.

    Lesson: 08_checkpoint, beside `checkpoint.restore`.
    """
    run.model.load_state_dict(state["model"])
    run.epoch = state["epoch"]
