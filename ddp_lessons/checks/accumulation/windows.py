"""
A DDP model that is watched during a window of micro-batches, and the window's right gradient.

Legend: w ranks, k micro-batches in a window, m in this one (m <= k), of n samples each; N samples
of a rank in a window; G numbers in a gradient. A table of shares is (w, m): the factor with which
each micro-batch's mean gradient counts in a rank's gradient, for the right way or for a mistake.
"""

import torch
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from ddp_lessons.accumulation import SavedBytes
from ddp_lessons.checks.kit.shared.passes import idle_passes
from ddp_lessons.checks.kit.shared.regression import (
    Regression,
    batch_gradients,
    gradient,
    regression_batches,
    trained,
)

NUM_FEATURES = 6
_USUAL_RANKS = 4


class Watched:
    """
    A DDP model whose forwards, backwards, optimizer steps and saved bytes are noted.

    Collective: every rank of the case must make it.

    Args:
        context: The RankContext of a case with `sizes` of batches, equal on all ranks, and a
            `dtype`.
        optimizer_of: Function of the parameters that returns the optimizer whose steps are noted.
    """

    def __init__(self, context, optimizer_of=None):
        case, dtype = context.case, getattr(torch, context["dtype"])
        model = Regression(case, NUM_FEATURES, dtype).to(context.device)
        self.batches = [
            (inputs.to(context.device), targets.to(context.device))
            for inputs, targets in batches_of(case, context.rank)
        ]
        self.model = DistributedDataParallel(model).train(case.data.get("mode") != "eval")
        idle_passes(self.model, self.batches[0][0])
        self.model.zero_grad()
        inputs, targets = max(self.batches, key=lambda batch: len(batch[0]))
        with SavedBytes(model) as saved:
            mse_loss(model(inputs), targets)
        self.noted: dict = {"one_bytes": saved.peak_bytes, "first": trained(model)}
        self.forwards, self.steps = [], []
        self._num_before = 0
        self._samples = torch.cat([inputs for inputs, _ in self.batches])
        self._hooks = [model.register_forward_hook(self._note_forward)]
        if optimizer_of:
            self.optimizer = optimizer_of(self.model.parameters())
            self._hooks.append(self.optimizer.register_step_pre_hook(self._note_step))

    def call(self, context, answer, *args):
        """
        Call the answer with the model and these arguments, and return a dictionary of all notes.
        """
        with SavedBytes(self.model) as saved:
            context.call(answer, self.model, *args, watch=(self.model,))
        while self._hooks:  # hooks keep the model alive, and the model its group
            self._hooks.pop().remove()
        return self.noted | {
            "peak_bytes": saved.peak_bytes,
            "gradient": gradient(self.model),
            "weights": trained(self.model),
            "syncs": self.model.require_backward_grad_sync,
            "forwards": self.forwards,
            "steps": self.steps,
        }

    def _note_forward(self, _, arguments, output):
        same = (arguments[0].detach()[:, None] == self._samples).all(dim=2)  # (n, samples)
        forward = {"samples": same.nonzero()[:, 1].tolist(), "backward": None}
        forward["forward"] = self.model.require_backward_grad_sync
        self.forwards.append(forward)
        if output.requires_grad:
            output.register_hook(lambda _: self._note_backward(forward))

    def _note_backward(self, forward):
        forward["backward"] = self.model.require_backward_grad_sync

    def _note_step(self, *_):
        since, self._num_before = self.forwards[self._num_before :], len(self.forwards)
        samples = [sample for forward in since for sample in forward["samples"]]
        now = {"weights": trained(self.model), "gradient": gradient(self.model)}
        self.steps.append(now | {"samples": samples})


def batches_of(case, rank):
    """
    Return the batches of one rank, with the sizes that the case names.
    """
    return regression_batches(
        case, rank, case["sizes"], NUM_FEATURES, getattr(torch, case["dtype"])
    )


class WindowGradients:
    """
    The right gradient of a window, and its gradients by common mistakes.

    Args:
        case: The Case.
        weights: (G,), the trained weights of the model.
        places: Positions of the window's batches in each rank's list.
        k: The number of batches in a full window.
    """

    def __init__(self, case, weights, places, k):
        self.num_ranks, self.k = case.world_size, k
        sizes = torch.tensor([case["sizes"][place] for place in places], dtype=torch.float64)
        num_terms = case.world_size * int(sizes.sum())
        both = [
            batch_gradients(weights, [batches_of(case, rank)[i] for i in places], num_terms)
            for rank in range(case.world_size)
        ]
        self.gradients, self.errors = (torch.stack(one) for one in zip(*both, strict=True))
        self._own = {  # the shares of one rank's micro-batches
            "right": sizes / sizes.sum(),
            "mean-of-means": torch.ones_like(sizes) / len(sizes),
            "by-k": torch.ones_like(sizes) / k,
            "by-k samples": sizes / sizes.max() / k,
            "undivided": torch.ones_like(sizes),
        }

    def of(self, shares):
        """
        Return the sum of all gradients, weighted by a table of shares, and its error; both (G,).
        """
        shares = shares.double()[..., None]  # (w, m) -> (w, m, 1)
        return (shares * self.gradients).sum((0, 1)), (shares * self.errors).sum((0, 1))

    def own(self, rank, name="right"):
        """
        Return the table of shares of a rank that adds up only its own micro-batches.
        """
        table = torch.zeros(self.gradients.shape[:2], dtype=torch.float64)
        table[rank] = self._own[name]
        return table

    def all(self, name="right"):
        """
        Return the table of shares of an average over ranks.
        """
        return sum(self.own(rank, name) for rank in range(self.num_ranks)) / self.num_ranks

    def right(self):
        """
        Return the gradient of the mean over all samples, and its error.
        """
        return self.of(self.all())

    def mistake(self, got, rank):
        """
        Return the mistake that results in this gradient on a rank, or None.
        """
        names = ("mean-of-means", "by-k", "by-k samples", "undivided")
        tables = [(name.partition(" ")[0], self.all(name)) for name in names]
        tables += [("no-sync", self.own(rank, name)) for name in ("right", *names)]
        for name in ("right", *names):
            last = self.all(name)
            last[:, :-1] = 0
            tables.append(("zeroed", last))
        tables.append(("divided-twice", self.all() / self.num_ranks))
        tables.append(("summed", self.all() * self.num_ranks))
        tables.append(("fixed-size", self.all() * self.num_ranks / _USUAL_RANKS))
        return next((name for name, table in tables if self.agrees(got, table)), None)

    def agrees(self, got, shares):
        """
        Tell whether a gradient is the one that a table of shares gives, up to rounding.
        """
        expected, error = self.of(shares)
        return bool(((got.double() - expected).abs() <= error).all())
