"""
The model that the four scripts of task 06.4 train, and the weights that right and wrong trainings
give it.

Legend: w ranks; n samples in a batch; K batches.
"""

from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DataParallel, DistributedDataParallel

from ddp_lessons.checks.kit import normal_numbers
from ddp_lessons.checks.kit.on_rank.patching import patched
from ddp_lessons.checks.kit.shared.regression import regression_batches

NUM_SCRIPTS = 4
PASSED_BY, FROZEN_LATE, LONELY = 2, 3, 4
_FEATURES, _HIDDEN, _SAMPLES, _BATCHES, _LR = 6, 8, 4, 3, 0.125
_TEST_SAMPLES = 7
_STATISTICS = ("norm.running_mean", "norm.running_var")
_TIMES = (2, 3, 4)
_USUAL_RANKS = 4
NEAR = 2.0**-30
"""
How far weights may be off, relative to the largest one. A rounding of float64 is 2**-53. About a
hundred roundings enter a weight in each step, and three short steps enlarge them less than a
thousandfold. A mistake moves a weight by more than 2**-10.
"""


class Net(nn.Module):
    """
    A model from (n, 6) to (n, 1), with a spare head for script 3 and BatchNorm for script 4.

    Args:
        case: The Case. Its `script` is a number from 1 to 4.
    """

    def __init__(self, case):
        super().__init__()
        self.trunk = nn.Linear(_FEATURES, _HIDDEN)
        self.norm = nn.BatchNorm1d(_HIDDEN) if case["script"] == LONELY else nn.Identity()
        self.head = nn.Linear(_HIDDEN, 1)
        if case["script"] == FROZEN_LATE:
            self.spare = nn.Linear(_HIDDEN, 1)
        self.double()
        with torch.no_grad():
            for place, parameter in enumerate(self.parameters()):
                first = normal_numbers(case, f"parameter {place}", parameter.shape, torch.float64)
                parameter.copy_(first / 2)

    def forward(self, inputs):
        """
        Return outputs (n, 1) for inputs (n, 6).
        """
        return self.head(self.norm(self.trunk(inputs)).tanh())


def state_of(net):
    """
    Return copies of all parameters and buffers of a model, by name.
    """
    return {name: one.detach().clone() for name, one in net.state_dict().items()}


def weights_of(case, state):
    """
    Return the parameters in a state as one flat tensor, in the order of `Net.named_parameters`.
    """
    return torch.cat([state[name].flatten() for name, _ in Net(case).named_parameters()])


def script_batches(case, rank):
    """
    Return the training batches of one rank: K pairs of inputs (n, 6) and targets (n, 1).
    """
    return regression_batches(case, rank, [_SAMPLES] * _BATCHES, _FEATURES, torch.float64)


def unseen_pair(case, rank):
    """
    Return the test batch of a rank, a pair of inputs (7, 6) and targets (7, 1).

    None of its samples is in a training batch.
    """
    return regression_batches(case, f"test {rank}", [_TEST_SAMPLES], _FEATURES, torch.float64)[0]


def loss_of(case, state, pair):
    """
    Return the loss of a model with this state, in eval mode, on a pair of inputs and targets.
    """
    net = Net(case).eval()
    net.load_state_dict(state)
    with torch.no_grad():
        return mse_loss(net(pair[0]), pair[1]).item()


class Training:
    """
    A training of a Net in one process, by the mean gradient of some ranks.

    Args:
        case: The Case.
        ranks: The ranks whose batches are used. After each step the model has the buffers of the
            first of them, as with DDP.
        times: The factor by which each step is multiplied.
        are_shared: Whether each rank's forward begins with the buffers of the first rank; else with
            the rank's own.

    Attributes:
        state: Parameters and buffers after the training, by name.
        counted: A list of the buffers, by name, that the last forward of each rank leaves.
    """

    def __init__(self, case, ranks, times=1, are_shared=True):
        net = Net(case)
        batches = {rank: script_batches(case, rank) for rank in ranks}
        self.counted = [_buffers(net) for _ in ranks]
        for number in range(_BATCHES):
            net.zero_grad()
            before = self.counted[:1] * len(ranks) if are_shared else self.counted
            self.counted = []
            for rank, buffers in zip(ranks, before, strict=True):
                inputs, targets = batches[rank][number]
                net.load_state_dict(buffers, strict=False)
                (mse_loss(net(inputs), targets) / len(ranks)).backward()
                self.counted.append(_buffers(net))
            net.load_state_dict(self.counted[0], strict=False)
            with torch.no_grad():
                for parameter in net.parameters():
                    if parameter.grad is not None:
                        parameter.sub_(times * _LR * parameter.grad)
        self.state = state_of(net)


def are_near(weights, wanted):
    """
    Tell whether each rank's weights are the wanted ones, up to `NEAR`; nan is not.
    """
    return all(
        bool(((got - one).abs() <= NEAR * one.abs().max()).all())
        for got, one in zip(weights, wanted, strict=True)
    )


def how_trained(case, weights, has_sent):
    """
    Return the mistake in the training that explains wrong weights.

    Args:
        case: The Case.
        weights: A list of the weights of each rank, in rank order.
        has_sent: Whether any rank made a communication call.

    Returns:
        tuple: The mistake's name and a sentence about it; ("", "") if no known mistake fits.
    """
    ranks, first = range(case.world_size), weights_of(case, state_of(Net(case)))

    def trained(*some, times=1):
        return weights_of(case, Training(case, some or ranks, times).state)

    def are_all(wanted):
        return are_near(weights, [wanted] * len(weights))

    def are_alone(times):
        own = [trained(one, times=times) for one in ranks]
        return all(
            are_near([got], [one]) or are_near([got], [first])
            for got, one in zip(weights, own, strict=True)
        )

    alone = [trained(one) for one in ranks]
    # An answer that averages the loss over ranks divides each gradient by the number of ranks.
    if not are_all(first) and (are_alone(1) or (has_sent and are_alone(1 / len(ranks)))):
        fact = "Each rank trained on its own batches only, or did not train."
        return "passed-by" if has_sent else "alone", fact
    for times in (*_TIMES, 1 / len(ranks), len(ranks) / _USUAL_RANKS):
        if times != 1 and are_all(trained(times=times)):
            return "scaled", f"Each step is {times:.2g} times as long as it should be."
    if any(map(are_all, [*alone, sum(alone) / len(alone)])):
        return "made-one", "Each rank trained alone, and then all models were combined into one."
    return "", ""


def _buffers(net):
    return {name: one.clone() for name, one in net.named_buffers()}


def are_pooled(state, counted):
    """
    Tell whether BatchNorm's statistics are pooled over all ranks.

    Args:
        state: Parameters and buffers of a model.
        counted: A list of the buffers, by name, that each rank's own last forward leaves.
    """
    means, variances = (torch.stack([one[name] for one in counted]) for name in _STATISTICS)
    mean, variance = (state[name] for name in _STATISTICS)
    near = NEAR * (1 + means.abs().amax(0))
    # For 4 samples, dividing by n in place of n - 1 makes a variance smaller by a quarter. A pooled
    # variance is larger than the ranks' own if their means differ.
    least, most = variances.mean(0) / 2, 2 * variances.amax(0)
    is_pooled = (mean - means.mean(0)).abs() <= near  # batches have the same size on all ranks
    return bool((is_pooled & (least <= variance) & (variance <= most)).all())


@contextmanager
def wrappings():
    """
    Note each time that a `with` block wraps a model in DDP or DataParallel.

    Yields:
        list: The class name of each wrapper made so far, in order.
    """
    found = []

    def noting(wrapper):
        wrap = wrapper.__init__

        def init(self, *args, **kwargs):
            found.append(wrapper.__name__)
            wrap(self, *args, **kwargs)

        return init

    with (
        patched(DistributedDataParallel, __init__=noting(DistributedDataParallel)),
        patched(DataParallel, __init__=noting(DataParallel)),
    ):
        yield found
