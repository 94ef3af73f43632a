"""
Lives of a small run: each ends in a step, or while it saves, and the next begins from nothing.

Legend: rank r of w; N samples of F numbers; a life is the time from a start of all ranks to the
next.
"""

import io
import os
import shutil
import tempfile
import threading
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from ddp_lessons.checks.kit import generator
from ddp_lessons.checks.kit.fixtures.passes import Killed
from ddp_lessons.checks.kit.on_rank.file_watch import FileWatch
from ddp_lessons.checks.kit.on_rank.patched_environ import told
from ddp_lessons.checks.kit.on_rank.patching import replacing

NUM_FEATURES, NUM_SAMPLES = 4, 3
_COUNT = "TORCHELASTIC_RESTART_COUNT"
_MEMORY = Path("/dev/shm")
_save = torch.save


class LifeRun:
    """
    Make a run at step 0 for one life, as a script does that was just started.

    Args:
        here: What the rank knows.
        ends_in: Number of the step in which the life ends; None: in none, 0: in its first.
        watch: A FileWatch of the checkpoint's file, or None.

    Attributes:
        model: An nn.Linear, the same first weights in every life.
        optimizer: SGD with momentum.
        step: How many steps were made.
        made: (number, weights before, momentum before) of each step of this life.
        is_dead: Whether the life is over.
        num_late: Calls after that.
        seen: (steps made, what was under the name then) for each content that the watch has seen.
    """

    def __init__(self, context, ends_in=None, watch=None):
        self._here, self._ends_in, self._watch, self.seen = context, ends_in, watch, []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(context.case.seed % 2**31)
            self.model = nn.Linear(NUM_FEATURES, 1).to(context.device)
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
        self.look()
        if number == self._ends_in:
            self.is_dead = True
            raise Killed
        self.made.append((number, self.weights(), self.momentum()))
        if self._ends_in == 0:
            self.is_dead = True
            raise Killed
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

    def look(self):
        """
        Note what the watch has seen since the last step.
        """
        if self._watch is not None:
            new = self._watch.versions[len(self.seen) :]
            self.seen += [(self.step, content) for _, content in new]

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


def live(context, answer, path, num_steps, *, number, ends_in=None, cut_save=None):
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
        dict: `made` and `seen` as of LifeRun, `end`: the weights and the step at its end,
        `num_late`, `num_saves`: calls of torch.save, or of what gives a file the name, `is_cut`:
        whether half a save lies at the path.
    """
    # More than one rank may look at what another one has just removed.
    watch = FileWatch(path) if context.world_size == 1 else None
    run = LifeRun(context, ends_in, watch)
    saves: list = []
    halves: list = []
    named: list = []
    own = threading.current_thread()

    def save(state, file, *args, **kwargs):
        saves.append(file)
        if threading.current_thread() is not own:
            return _save(state, file, *args, **kwargs)  # what is raised there ends no life
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

    def counted(move):
        def moved(source, target, *args, **kwargs):
            named.extend([target] if os.fsdecode(target) == str(path) else [])
            return move(source, target, *args, **kwargs)

        return moved

    moves = {name: counted(getattr(os, name)) for name in ("rename", "replace")}
    elsewhere = _temporary_folder(path)
    with (
        replacing(torch, save=save),
        replacing(os, **moves),
        replacing(tempfile, tempdir=elsewhere),
        told({_COUNT: str(number), "TMPDIR": elsewhere}),
        watch or nullcontext(),
        suppress(Killed),
    ):
        context.call(answer, run, path, num_steps)
    run.look()
    # Of several ranks none is cut, and one may remove what another looks at.
    is_cut = bool(halves) and path.exists() and path.read_bytes() in halves
    dist.barrier()
    if context.rank == 0:
        leave_alone(path)
    dist.barrier()
    return {
        "made": run.made,
        "seen": run.seen,
        "end": (run.step, run.weights()),
        "num_late": run.num_late,
        "num_saves": max(len(saves), len(named)),
        "is_cut": is_cut,
    }


def _temporary_folder(path):
    # On a node of a cluster it is no part of the shared disk: a file is moved from there by a copy.
    is_other_disk = _MEMORY.is_dir() and _MEMORY.stat().st_dev != path.parent.stat().st_dev
    return str(_MEMORY) if is_other_disk else tempfile.gettempdir()


def leave_alone(path):
    """
    Remove what lies beside a file: nothing but the file comes over to the next life.
    """
    for other in path.parent.iterdir():
        if other != path:
            shutil.rmtree(other) if other.is_dir() else other.unlink()


def begun_after(context, answer, path, num_steps, content):
    """
    Begin a life that finds a content under the name, and end it in its first step.

    Returns:
        tuple: The number of that step, of the one after the last if it makes none, or None; and the
        weights at its beginning, or the name of the error that was raised instead.
    """
    leave_alone(path)
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)
    run = LifeRun(context, ends_in=0)
    try:
        with told({_COUNT: "1"}), suppress(Killed):
            answer(run, path, num_steps)
    except Exception as error:
        return None, type(error).__name__
    return run.step + 1, run.weights()


def whole_run(context, num_steps):
    """
    Make all steps in one life, and return (number, weights, momentum) before each and at the end.

    Collective: every rank must call it.
    """
    run = LifeRun(context)
    for _ in range(num_steps):
        run.train_step()
    return [*run.made, (num_steps + 1, run.weights(), run.momentum())]


@dataclass
class Life:
    """
    Hold one life of a rank.

    Args:
        life: What `live` returned.
        number: Which life it is, from 0.
        done: How many steps were made before it.
    """

    life: dict
    number: int
    done: int

    @property
    def when(self):
        """
        When it is, in words.
        """
        return f"In life {self.number}, after {self.done} steps that were made"

    @property
    def numbers(self):
        """
        The numbers of its steps.
        """
        return [step for step, *_ in self.life["made"]]


def lives_of(view):
    """
    Return a Life for each of a rank's lives.
    """
    found, done = [], 0
    for number, life in enumerate(view.kept["lives"]):
        found.append(Life(life, number, done))
        done = max(done, life["end"][0])
    return found


def in_a_life(fact_of):
    """
    Return what gives the first fact that `fact_of(view, life)` has of a rank's lives.
    """

    def shows(view):
        facts = ((one, fact_of(view, one)) for one in lives_of(view))
        return next((f"{one.when}: {fact}" for one, fact in facts if fact), "")

    return shows
