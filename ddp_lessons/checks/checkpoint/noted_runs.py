"""
The runs that exercise 08 kills, saves and resumes, in addition to those of `kit.shared`.

Legend: step s is made when s - 1 steps are done; N samples of F numbers; G numbers in a gradient.
"""

import random
import time

import torch
from torch import nn
from torch.nn.functional import relu
from torch.nn.parallel import DistributedDataParallel

from ddp_lessons.checkpoint import Run
from ddp_lessons.checks.kit import equal
from ddp_lessons.checks.kit.shared.passes import Killed, idle_passes
from ddp_lessons.checks.kit.shared.small_runs import (
    NUM_HIDDEN,
    NoisyRun,
    WatchedCheckpoints,
    gradient_of,
)
from ddp_lessons.workloads import digits_model

_MOST_STEPS = 30  # the most steps of a life; a whole run has up to 22
_RATE, _MOMENTUM = 0.1, 0.9


class Centred(nn.Module):
    """
    A layer that subtracts a running mean, as BatchNorm does. The mean is a buffer, not a parameter.
    In train mode, it multiplies its inputs by a number from Python's random number generator.

    Args:
        num_features: F.

    Shapes: (N, F) -> (N, F)
    """

    running_mean: torch.Tensor

    def __init__(self, num_features):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(num_features))

    def forward(self, inputs):
        """
        Return relu of the inputs less the running mean, which is updated only in train mode.
        """
        if self.training:
            inputs = inputs * (0.5 + random.random())
            with torch.no_grad():
                self.running_mean.lerp_(inputs.mean(dim=0), 0.1)
        return relu(inputs) - self.running_mean.clone()


def buffered_run(context, seed):
    """
    Return a NoisyRun whose model has a buffer that each step changes and the next step uses. Its
    model also draws from Python's random number generator, which has a seed of each rank's own.

    Args:
        context: The RankContext; its case names the `optimizer`.
        seed: The first weights and the first noise follow from it.
    """
    noisy_run = NoisyRun(context, seed, hidden=Centred(NUM_HIDDEN))
    random.seed(f"{seed} {context.rank}")
    return noisy_run


class NotedRun(NoisyRun):
    """
    A NoisyRun that notes the counts before each step, and is killed if it makes too many steps.

    Args: those of NoisyRun, without `hidden`.

    Attributes:
        counts: (run.step, run.epoch, epoch of the sampler) before each step.
    """

    def __init__(self, context, seed, killed_after=None):
        super().__init__(context, seed, killed_after)
        self.counts = []

    def step(self, run, batch):
        """
        Make one step on a batch, after noting the counts.
        """
        if len(self.counts) == _MOST_STEPS:
            self.is_dead = True
            raise Killed
        self.counts.append((run.step, run.epoch, run.sampler.epoch))
        super().step(run, batch)


class NotedCheckpoints(WatchedCheckpoints):
    """
    WatchedCheckpoints that note the sampler's position at each save, and the time of each call.

    Args: those of WatchedCheckpoints.

    Attributes:
        places: (step of the run, epoch and position of its sampler) for each save of a run that has
            a sampler.
        made: Number of steps that a DigitsRun had made at each save.
        num_loads: Number of calls of `load`.
        spans: (start, end) of each call, in nanoseconds of the monotonic clock.
    """

    def __init__(self, root, life):
        super().__init__(root, life)
        self.places, self.made, self.spans, self.num_loads = [], [], [], 0

    def _note(self, name, run):
        if run.sampler is None:
            self.made.append(len(self._life.steps))
        else:
            place = run.sampler.state_dict()
            self.places.append((run.step, place["epoch"], place["position"]))
        began_ns = time.monotonic_ns()
        super()._note(name, run)
        self.spans.append((began_ns, time.monotonic_ns()))

    def load(self, run, exact=True):
        """
        Load as `Checkpoints.load` does, and note the time.
        """
        self.num_loads += 1
        began_ns = time.monotonic_ns()
        choice = super().load(run, exact)
        self.spans.append((began_ns, time.monotonic_ns()))
        return choice

    def num_between(self, events, steps):
        """
        Return the number of calls between the first and the last step of a DigitsRun that are part
        neither of a backward nor of a save or load.

        Messages of a save in the background go through another group, and do not count.

        Args:
            events: A trace.
            steps: The `steps` of the run.
        """
        if not steps:
            return 0
        calls = [event for event in events if event.is_communication]
        groups = {event.group for event in calls if event.backward is not None}
        return sum(
            event.backward is None
            and steps[0]["at_ns"] < event.start_ns < steps[-1]["at_ns"]
            and (event.group in groups or not groups)
            and not any(began <= event.start_ns <= ended for began, ended in self.spans)
            for event in calls
        )


class DigitsRun:
    """
    A run on digits that notes its steps and the samples in them, and is killed in a given step.

    Args:
        context: The RankContext.
        seed: The first weights follow from it.
        killed_in: Number of the step in which the run is killed; None: it is not.

    Attributes:
        run: The Run, at step 0.
        steps: A list with a dictionary of notes for each step.
        is_dead: Whether the run was killed.
    """

    def __init__(self, context, seed, killed_in=None):
        self.steps, self.is_dead = [], False
        self._samples, self._largest = 0, 0
        inner = digits_model(seed).to(context.device)
        self._list = list(inner.parameters())
        optimizer = torch.optim.SGD(inner.parameters(), lr=_RATE, momentum=_MOMENTUM)
        model = DistributedDataParallel(inner)
        idle_passes(model, torch.ones(1, 64, device=context.device))
        optimizer.zero_grad()
        self.run = Run(model, optimizer)
        self._killed_in = killed_in
        inner.register_forward_pre_hook(self._on_forward)
        optimizer.register_step_pre_hook(self._on_step)

    def _on_forward(self, _, arguments):
        # Kill the run in the middle of a step, after its first micro-batch.
        if self.run.step + 1 == self._killed_in and self._samples:
            self.is_dead = True
            raise Killed
        self._samples += len(arguments[0])
        self._largest = max(self._largest, len(arguments[0]))

    def _on_step(self, *_):
        if not self._samples:
            return  # DCP makes a step with zero gradients, to create the optimizer's state
        # An answer may have set the gradients to None, or never have called backward.
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._list]
        self.steps.append(
            {
                "number": self.run.step + 1,
                "at_ns": time.monotonic_ns(),
                **self.state(),
                "gradient": torch.cat([one.flatten().cpu() for one in gradients]),
                "samples": self._samples,
                "largest": self._largest,
            }
        )
        self._samples = self._largest = 0

    def state(self):
        """
        Return copies of weights and momentum. Missing momentum is returned as zeros.
        """
        of = self.run.optimizer.state
        both = [(p, of[p].get("momentum_buffer") if p in of else None) for p in self._list]
        return {
            "weights": [p.detach().cpu().clone() for p in self._list],
            "optimizer": [torch.zeros_like(p) if m is None else m.clone() for p, m in both],
        }


def is_update(step, later):
    """
    Tell whether the weights after a step of a DigitsRun are those of its optimizer, up to rounding.

    Args:
        step: The run's notes of that step.
        later: Its state afterwards: the notes of a later step, or what `DigitsRun.state` returned.
    """
    both = [torch.cat([one.flatten() for one in step[part]]) for part in ("weights", "optimizer")]
    weights, momentum, gradient = (one.double() for one in (*both, step["gradient"]))
    right = weights - _RATE * (_MOMENTUM * momentum + gradient)
    size = weights.abs() + _RATE * (_MOMENTUM * momentum.abs() + gradient.abs())
    got = torch.cat([one.flatten() for one in later["weights"]])
    # There are six roundings of half an epsilon each: of two factors, two products and two sums.
    return bool(((got - right).abs() <= 4 * torch.finfo(got.dtype).eps * size).all())


class RightGradients:
    """
    The right gradients of steps. Each is computed only once, as ranks and lives share weights.

    Args:
        kept: A dictionary that a rank kept, with "images", "labels" and "batches".
    """

    def __init__(self, kept):
        self._kept, self._known = kept, []

    def of(self, step):
        """
        Return the gradient of a step and its error, both (G,).
        """
        for number, weights, both in self._known:
            if number == step["number"] and equal(weights, step["weights"]):
                return both
        batch = self._kept["batches"][step["number"] - 1]
        images, labels = self._kept["images"][batch], self._kept["labels"][batch]
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)  # threads for small products wait for each other on a busy machine
        try:
            both = gradient_of(step["weights"], images, labels)
        finally:
            torch.set_num_threads(num_threads)
        self._known.append((step["number"], step["weights"], both))
        return both
