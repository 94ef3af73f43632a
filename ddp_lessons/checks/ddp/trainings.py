"""
The model that the four scripts of exercise 06 train, and what each training makes of it.

Legend: w ranks; n samples in a batch; K batches.
"""

from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DataParallel, DistributedDataParallel

from ddp_lessons.checks.kit import normal_numbers
from ddp_lessons.checks.kit.fixtures.regression import regression_batches
from ddp_lessons.checks.kit.on_rank.patching import replacing

NUM_SCRIPTS = 4
PASSED_BY, FROZEN_LATE, LONELY = 2, 3, 4
_FEATURES, _HIDDEN, _SAMPLES, _BATCHES, _LR = 6, 8, 4, 3, 0.125
_TEST_SAMPLES = 7
_STATISTICS = ("norm.running_mean", "norm.running_var")
_TIMES = (2, 3, 4)
_USUAL_RANKS = 4
NEAR = 2.0**-30
"""
How far weights may be off: a rounding of float64 is 2**-53, some hundred enter a weight in a step,
and three short steps enlarge none of them a thousandfold. A mistake is above 2**-10.
"""


class Net(nn.Module):
    """
    Map (n, 6) to (n, 1): with a spare head for script 3, with BatchNorm for script 4.

    Args:
        case: The Case, with a `script`.
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
        Return (n, 1) for inputs (n, 6).
        """
        return self.head(self.norm(self.trunk(inputs)).tanh())


def state_of(net):
    """
    Return all parameters and buffers of a model by name, copied.
    """
    return {name: one.detach().clone() for name, one in net.state_dict().items()}


def weights_of(case, state):
    """
    Return the parameters in a state as one tensor, in the order of a Net's own.
    """
    return torch.cat([state[name].flatten() for name, _ in Net(case).named_parameters()])


def script_batches(case, rank):
    """
    Return what one rank trains on: K pairs of inputs (n, 6) and targets (n, 1).
    """
    return regression_batches(case, rank, [_SAMPLES] * _BATCHES, _FEATURES, torch.float64)


def unseen_pair(case, rank):
    """
    Return a pair that a rank has for testing: of another size, and in none of its batches.
    """
    return regression_batches(case, f"test {rank}", [_TEST_SAMPLES], _FEATURES, torch.float64)[0]


def loss_of(case, state, pair):
    """
    Return the loss of a model in eval mode.
    """
    net = Net(case).eval()
    net.load_state_dict(state)
    with torch.no_grad():
        return mse_loss(net(pair[0]), pair[1]).item()


class Training:
    """
    Train a Net in one process by the mean gradient of some ranks.

    Args:
        case: The Case.
        ranks: The ranks whose batches count. The statistics of the first one are kept, as by DDP.
        times: How many times as far as that each step goes.
        are_shared: Whether each forward of a rank begins with the buffers of the first one.

    Attributes:
        state: Parameters and buffers afterwards, by name.
        counted: For each rank the buffers that its own last forward leaves.
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
    Tell whether each rank's weights are those wanted. What is no number is not near.
    """
    return all(
        bool(((got - one).abs() <= NEAR * one.abs().max()).all())
        for got, one in zip(weights, wanted, strict=True)
    )


def how_trained(case, weights, has_sent):
    """
    Say what training gives weights that are not those wanted.

    Args:
        case: The Case.
        weights: For each rank its weights.
        has_sent: Whether any rank has sent anything.

    Returns:
        tuple: The mistake and the fact; ("", "") if it is none of those that are known.
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
    # A loss that is averaged by messages is divided by the number of ranks, and so is its gradient.
    if not are_all(first) and (are_alone(1) or (has_sent and are_alone(1 / len(ranks)))):
        fact = "Each rank trained by its own batches, or not at all."
        return "passed-by" if has_sent else "alone", fact
    for times in (*_TIMES, 1 / len(ranks), len(ranks) / _USUAL_RANKS):
        if times != 1 and are_all(trained(times=times)):
            return "scaled", f"Each step goes {times:.2g} times as far as it should."
    if any(map(are_all, [*alone, sum(alone) / len(alone)])):
        return "made-one", "Ranks trained alone, and then one model was made of theirs."
    return "", ""


def _buffers(net):
    return {name: one.clone() for name, one in net.named_buffers()}


def are_pooled(state, counted):
    """
    Tell whether BatchNorm's statistics are those of all ranks, pooled.

    Args:
        state: Parameters and buffers of a model.
        counted: For each rank the buffers that it has counted.
    """
    means, variances = (torch.stack([one[name] for one in counted]) for name in _STATISTICS)
    mean, variance = (state[name] for name in _STATISTICS)
    near = NEAR * (1 + means.abs().amax(0))
    # Of 4 samples, n - 1 for n takes away a quarter; means that are apart add to a variance.
    least, most = variances.mean(0) / 2, 2 * variances.amax(0)
    is_pooled = (mean - means.mean(0)).abs() <= near  # batches have the same size on all ranks
    return bool((is_pooled & (least <= variance) & (variance <= most)).all())


@contextmanager
def wrappings():
    """
    Note how often a block wraps a model. Yields a list, to which each wrapping adds its class.
    """
    found = []

    def noting(wrapper):
        wrap = wrapper.__init__

        def init(self, *args, **kwargs):
            found.append(wrapper.__name__)
            wrap(self, *args, **kwargs)

        return init

    with (
        replacing(DistributedDataParallel, __init__=noting(DistributedDataParallel)),
        replacing(DataParallel, __init__=noting(DataParallel)),
    ):
        yield found
