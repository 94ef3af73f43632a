"""
Small runs of DDP that can be killed at a step, and saved and resumed as often as a check likes.

Legend: rank r of w; N samples of F numbers, C classes; H hidden units; G numbers in a gradient.
"""

from contextlib import suppress

import torch
from torch import nn
from torch.nn.functional import cross_entropy, log_softmax
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler

from ddp_lessons.checkpoint import Checkpoints, Run
from ddp_lessons.checks.kit.material.numbers import generator, normal_numbers
from ddp_lessons.checks.kit.material.passes import Killed, idle_passes
from ddp_lessons.samplers import ResumableSampler

NUM_FEATURES, NUM_HIDDEN, NUM_CLASSES = 6, 8, 3
NUM_SAMPLES, BATCH_SIZE = 22, 2


class WatchedCheckpoints(Checkpoints):
    """
    Note every save of a run. Once the run is dead, nothing more is saved, as after a kill.

    Args:
        root: The folder.
        life: What tells by `is_dead` whether its run was killed.

    Attributes:
        log: (name of the call, step of the run) for each save.
        num_late: How many saves were tried by a run that was dead.
    """

    def __init__(self, root, life):
        super().__init__(root, keep_last=100)
        self.log, self.num_late, self._life = [], 0, life

    def _note(self, name, run):
        if self._life.is_dead:
            self.num_late += 1
            raise Killed
        self.log.append((name, run.step))
        getattr(super(), name)(run)

    def save(self, run):
        """
        Save as Checkpoints does, and note it.
        """
        self._note("save", run)

    def save_sharded(self, run):
        """
        Save as Checkpoints does, and note it.
        """
        self._note("save_sharded", run)

    def save_async(self, run):
        """
        Save as Checkpoints does, and note it.
        """
        self._note("save_async", run)


def live(here, saves, answer, *args, **kwargs):
    """
    Call an answer that may be killed meanwhile, and leave nothing of it in the background.
    """
    with suppress(Killed):
        here.call(answer, *args, **kwargs)
    saves.close()


class NoisyRun:
    """
    Make a run that everything moves: momentum, a falling rate, a shuffle, noise.

    Args:
        here: What the rank knows.
        seed: First weights and first noise follow from it.
        killed_after: Number of the step after which the run is killed; None: it is not.
        hidden: The module between the two layers. Default: ReLU.

    Attributes:
        run: The Run, at step 0.
        batches: Yields the rest of this rank's batches of an epoch, as lists of sample numbers.
        seen: For each step (epoch, batch).
        is_dead: Whether the run was killed.
    """

    def __init__(self, here, seed, killed_after=None, hidden=None):
        case = here.case
        rows = normal_numbers(case, None, (NUM_SAMPLES, NUM_FEATURES))
        self._images = rows.to(here.device)
        labels = torch.randint(NUM_CLASSES, (NUM_SAMPLES,), generator=generator(case))
        self._labels = labels.to(here.device)
        self._killed_after, self._device = killed_after, here.device
        torch.manual_seed(seed)
        first, last = nn.Linear(NUM_FEATURES, NUM_HIDDEN), nn.Linear(NUM_HIDDEN, NUM_CLASSES)
        layers = nn.Sequential(first, hidden or nn.ReLU(), last)
        model = DistributedDataParallel(layers.to(here.device))
        optimizer = _optimizer(case.data.get("optimizer"), model.parameters())
        idle_passes(model, self._images[:1])
        optimizer.zero_grad()
        torch.manual_seed(seed + here.rank)
        self.run = Run(
            model,
            optimizer,
            scheduler=torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5),
            sampler=ResumableSampler(
                range(NUM_SAMPLES), rank=here.rank, world_size=here.world_size
            ),
        )
        self.batches = BatchSampler(self.run.sampler, BATCH_SIZE, drop_last=False)
        self.seen = []
        self.is_dead = False

    def step(self, run, batch):
        """
        Make one step on a batch, and count it.
        """
        if run.step == self._killed_after:
            self.is_dead = True
            raise Killed
        self.seen.append((run.sampler.epoch, list(batch)))
        noise = torch.randn(len(batch), NUM_FEATURES).to(self._device)  # the CPU's generator
        loss = cross_entropy(run.model(self._images[batch] + noise), self._labels[batch])
        run.optimizer.zero_grad()
        loss.backward()
        run.optimizer.step()
        run.scheduler.step()
        run.step += 1

    def go_on(self, last_step):
        """
        Make the steps up to number `last_step`, through as many epochs as it takes.
        """
        run = self.run
        run.sampler.load_state_dict(run.sampler.state_dict())  # go on where the last call left
        while run.step < last_step:
            run.sampler.set_epoch(run.epoch)
            for batch in self.batches:
                self.step(run, batch)
                if run.step == last_step:
                    return
            run.epoch += 1

    def weights(self):
        """
        Return all weights as one tensor.
        """
        return torch.cat([p.detach().flatten() for p in self.run.model.parameters()])


def _optimizer(name, parameters):
    if name == "AdamW":
        return torch.optim.AdamW(parameters, lr=0.01)
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def gradient_of(parameters, images, labels):
    """
    Return the gradient of two layers' mean cross-entropy in float64, and the rounding allowed.

    Every sum of n products may be off by (n + 1) u / (1 - (n + 1) u) times the sum of its absolute
    terms. What goes into it may be off already, and that is carried along: through ReLU as it is
    (all of it where the sign is in doubt), through softmax as a factor.

    Args:
        parameters: Weight (H, F), bias (H,), weight (C, H), bias (C,), as the run had them.
        images: (N, F), of all ranks.
        labels: (N,) int64.

    Returns:
        tuple: Gradient and error, both (G,) float64.

    Source: N. Higham, Accuracy and Stability of Numerical Algorithms, sections 3.1 and 3.3.
    """
    unit = torch.finfo(parameters[0].dtype).eps / 2
    w1, b1, w2, b2 = (p.detach().double() for p in parameters)
    x, num = images.double(), len(images)

    def rounding(num_terms):
        # 16 more: weights of losses, means over micro-batches and ranks, and the oracle's own.
        return (num_terms + 16) * unit / (1 - (num_terms + 16) * unit)

    z1 = x @ w1.T + b1  # (N, F) (F, H) -> (N, H)
    off_z1 = rounding(x.shape[1]) * (x.abs() @ w1.abs().T + b1.abs())
    h, off_h = z1.relu(), off_z1
    z2 = h @ w2.T + b2  # (N, H) (H, C) -> (N, C)
    most_z2 = (h + off_h) @ w2.abs().T + b2.abs()
    off_z2 = rounding(h.shape[1]) * most_z2 + off_h @ w2.abs().T
    logs = log_softmax(z2, dim=1)
    own = rounding(z2.shape[1]) * (1 + logs.abs() + most_z2)
    p = logs.exp()
    d = p.clone()
    d[torch.arange(num), labels] -= 1
    off_d = p * torch.expm1(2 * off_z2.amax(1, keepdim=True) + own) + rounding(0) * d.abs()
    d, off_d = d / num, off_d / num
    dh, off_dh = d @ w2, (off_d + rounding(z2.shape[1]) * d.abs()) @ w2.abs()
    in_doubt = z1.abs() <= off_z1
    dz1 = dh * (z1 > 0)
    off_dz1 = off_dh * ((z1 > 0) | in_doubt) + dh.abs() * in_doubt
    ones = torch.ones(num, 1, dtype=torch.float64, device=x.device)
    gradients, errors = [], []
    for into, off_into, back, off_back in ((x, 0 * x, dz1, off_dz1), (h, off_h, d, off_d)):
        for left, off_left in ((into, off_into), (ones, 0 * ones)):
            size = back.abs().T @ left.abs()
            off = off_back.T @ (left.abs() + off_left) + back.abs().T @ off_left
            gradients.append((back.T @ left).flatten())
            errors.append((off + rounding(num) * size).flatten())
    return torch.cat(gradients), torch.cat(errors)
