"""
Lives of a small training run: a life ends in a step or in a save, and the next one starts anew.

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
from ddp_lessons.checks.kit.on_rank.file_watch import FileWatch
from ddp_lessons.checks.kit.on_rank.patched_environ import told
from ddp_lessons.checks.kit.on_rank.patching import patched
from ddp_lessons.checks.kit.shared.passes import Killed

NUM_FEATURES, NUM_SAMPLES = 4, 3
_COUNT = "TORCHELASTIC_RESTART_COUNT"
_MEMORY = Path("/dev/shm")
_save = torch.save


class LifeRun:
    """
    The training run of one life. It begins at step 0, as in a script that was just started.

    Args:
        context: The rank context.
        ends_in: Number of the step in which the life ends. None: in no step. 0: in its first step,
            whichever number that has.
        watch: A FileWatch of the checkpoint's file, or None.

    Attributes:
        model: An nn.Linear, with the same first weights in every life.
        optimizer: SGD with momentum.
        step: Number of steps made. An answer sets it when it loads a checkpoint.
        made: (number, weights before, momentum before) of each step of this life.
        is_dead: Whether the life is over.
        num_late: Number of calls after the life was over.
        seen: (steps made, content of the file) for each content that the watch has seen.
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
        Note the contents that the watch has seen since the last look.
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
    Call an answer for one life, and return what it did.

    Args:
        context: The rank context.
        answer: Called as answer(run, path, num_steps).
        path: The checkpoint's file.
        num_steps: Steps of the whole run.
        number: The restart count that the launcher reports in this life.
        ends_in: Number of the step in which the life ends (see `LifeRun`).
        cut_save: Number of the save, from 1, in whose middle the life ends. None: in no save.

    Returns:
        dict: `made`, `seen` and `num_late` as in LifeRun; `end`, the step and the weights at its
        end; `num_saves`, the number of calls of torch.save, or of renames to the path if there are
        more of those; `is_cut`, whether half a save is at the path.
    """
    # With several ranks, a rank could look at a file that another rank has just removed.
    watch = FileWatch(path) if context.world_size == 1 else None
    run = LifeRun(context, ends_in, watch)
    saves: list = []
    halves: list = []
    named: list = []
    own = threading.current_thread()

    def save(state, file, *args, **kwargs):
        saves.append(file)
        if threading.current_thread() is not own:
            return _save(state, file, *args, **kwargs)  # an error there would not end the life
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
        patched(torch, save=save),
        patched(os, **moves),
        patched(tempfile, tempdir=elsewhere),
        told({_COUNT: str(number), "TMPDIR": elsewhere}),
        watch or nullcontext(),
        suppress(Killed),
    ):
        context.call(answer, run, path, num_steps)
    run.look()
    # With several ranks no save is cut. The file is not read then, as another rank may remove it.
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
    # On a cluster's node the temporary folder is not on the shared disk: moving a file from there
    # copies it.
    is_other_disk = _MEMORY.is_dir() and _MEMORY.stat().st_dev != path.parent.stat().st_dev
    return str(_MEMORY) if is_other_disk else tempfile.gettempdir()


def leave_alone(path):
    """
    Remove everything else in a file's folder: the next life finds only the file.
    """
    for other in path.parent.iterdir():
        if other != path:
            shutil.rmtree(other) if other.is_dir() else other.unlink()


def begun_after(context, answer, path, num_steps, content):
    """
    Begin a life that finds this content at the path, and end it in its first step.

    Returns:
        tuple: The number of that step, and the weights before it. If the life makes no step, the
        number is that of the step after the last. If it raises: None, and the error's name.
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
    One life of a rank.

    Args:
        life: The dictionary that `live` returned.
        number: Number of the life, from 0.
        done: Number of steps that earlier lives made.
    """

    life: dict
    number: int
    done: int

    @property
    def when(self):
        """
        The first words of a sentence about this life.
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
    for number, life in enumerate(view.output["lives"]):
        found.append(Life(life, number, done))
        done = max(done, life["end"][0])
    return found


def in_a_life(fact_of):
    """
    Return a `shows` that returns the first fact that `fact_of(view, life)` finds in the lives.
    """

    def shows(view):
        facts = ((one, fact_of(view, one)) for one in lives_of(view))
        return next((f"{one.when}: {fact}" for one, fact in facts if fact), "")

    return shows
