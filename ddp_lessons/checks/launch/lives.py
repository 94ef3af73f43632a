"""
Lives of a small run: each ends in a step, or while it saves, and the next begins from nothing.

Legend: rank r of w; N samples of F numbers; a life is the time from a start of all ranks to the
next.
"""

import io
import os
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from ddp_lessons.checks.kit import generator
from ddp_lessons.checks.kit.inside.replacing import replacing
from ddp_lessons.checks.kit.material.runs import Killed

NUM_FEATURES, NUM_SAMPLES = 4, 3
_COUNT = "TORCHELASTIC_RESTART_COUNT"
_save = torch.save


class LifeRun:
    """
    Make a run at step 0 for one life, as a script does that was just started.

    Args:
        here: What the rank knows.
        ends_in: Number of the step in which the life ends; None: in none.

    Attributes:
        model: An nn.Linear, the same first weights in every life.
        optimizer: SGD with momentum.
        step: How many steps were made.
        made: (number, weights before, momentum before) of each step of this life.
        is_dead: Whether the life is over.
        num_late: Calls after that.
    """

    def __init__(self, here, ends_in=None):
        self._here, self._ends_in = here, ends_in
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(here.case.seed % 2**31)
            self.model = nn.Linear(NUM_FEATURES, 1).to(here.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.step, self.made, self.is_dead, self.num_late = 0, [], False, 0

    def train_step(self):
        """
        Make the next step, all ranks together, and count it in `step`.
        """
        if self.is_dead:
            self.num_late += 1
            raise Killed
        number = self.step + 1
        if number == self._ends_in:
            self.is_dead = True
            raise Killed
        self.made.append((number, self.weights(), self.momentum()))
        rng = generator(self._here.case, f"{self._here.rank} {number}")
        samples = torch.randn(NUM_SAMPLES, NUM_FEATURES + 1, generator=rng).to(self._here.device)
        loss = (self.model(samples[:, :-1]) - samples[:, -1:]).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        dist.all_reduce(flat)
        parts = flat.split([p.numel() for p in self.model.parameters()])
        for p, part in zip(self.model.parameters(), parts, strict=True):
            p.grad.copy_(part.view_as(p) / self._here.world_size)
        self.optimizer.step()
        self.step += 1

    def weights(self):
        """
        Return all weights as one tensor.
        """
        return torch.cat([p.detach().flatten() for p in self.model.parameters()]).clone()

    def momentum(self):
        """
        Return all momenta as one tensor; zeros where there is none yet.
        """
        kept = [self.optimizer.state.get(p, {}) for p in self.model.parameters()]
        both = zip(kept, self.model.parameters(), strict=True)
        found = [
            state["momentum_buffer"] if state.get("momentum_buffer") is not None else 0 * p.detach()
            for state, p in both
        ]
        return torch.cat([one.flatten() for one in found]).clone()


def live(here, answer, path, num_steps, *, number, ends_in=None, cut_save=None):
    """
    Call an answer for one life, and tell what it did.

    Args:
        here: What the rank knows.
        answer: Called as answer(run, path, num_steps).
        path: The checkpoint's file.
        num_steps: Steps of the whole run.
        number: What the launcher says of the life: how often it has restarted the ranks.
        ends_in: As for LifeRun.
        cut_save: Number of the save in the middle of which the life ends, from 1; None: of none.

    Returns:
        dict: `made` as of LifeRun, `end`: the weights and the step at its end, `num_late`,
        `num_saves`: calls of torch.save, `is_cut`: whether half a save lies at the path.
    """
    run = LifeRun(here, ends_in)
    saves: list = []
    halves: list = []

    def save(state, file, *args, **kwargs):
        saves.append(file)
        if run.is_dead:
            run.num_late += 1
            raise Killed
        if len(saves) != cut_save:
            return _save(state, file, *args, **kwargs)
        content = io.BytesIO()
        _save(state, content, *args, **kwargs)
        half = content.getvalue()[: len(content.getvalue()) // 2]
        halves.append(half)
        run.is_dead = True
        if hasattr(file, "write"):
            file.write(half)
            file.flush()
        else:
            Path(file).write_bytes(half)
        raise Killed

    with replacing(torch, save=save), _told(number), suppress(Killed):
        here.call(answer, run, path, num_steps)
    is_cut = path.exists() and path.read_bytes() in halves
    dist.barrier()
    return {
        "made": run.made,
        "end": (run.step, run.weights()),
        "num_late": run.num_late,
        "num_saves": len(saves),
        "is_cut": is_cut,
    }


@contextmanager
def _told(number):
    before = os.environ.get(_COUNT)
    os.environ[_COUNT] = str(number)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_COUNT]
        else:
            os.environ[_COUNT] = before


def whole_run(here, num_steps):
    """
    Make all steps in one life, and return (number, weights, momentum) before each and at the end.

    Collective: every rank must call it.
    """
    run = LifeRun(here)
    for _ in range(num_steps):
        run.train_step()
    return [*run.made, (num_steps + 1, run.weights(), run.momentum())]
