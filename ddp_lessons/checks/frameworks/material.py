"""
The common part of tasks 16.1 and 16.2: a small classifier, a dataset that notes which samples are
fetched, and the import of the frameworks before a check's clock starts.
"""

import importlib

import torch
from torch import nn
from torch.utils.data import Dataset

from ddp_lessons.checks.kit import generator
from ddp_lessons.checks.kit.shared.warm_up import first_ddp
from ddp_lessons.errors import BadInput
from ddp_lessons.frameworks import quiet, told
from ddp_lessons.frameworks.stored import FRAMEWORKS, is_here

NUM_FEATURES, NUM_CLASSES = 5, 3


class Samples(Dataset):
    """
    A dataset that notes which samples are fetched. A sample is NUM_FEATURES numbers and a class.

    Args:
        case: The Case, whose seed decides the samples.
        num: Number of samples.
        dtype: The dtype of their numbers.

    Attributes:
        fetched: The indices that were fetched, in order.
    """

    def __init__(self, case, num, dtype):
        rng = generator(case, "samples")
        inputs = torch.randn((num, NUM_FEATURES), generator=rng, dtype=torch.float64)
        self.inputs = inputs.to(dtype)
        self.classes = torch.randint(NUM_CLASSES, (num,), generator=rng)
        self.fetched = []

    def __len__(self):
        return len(self.classes)

    def __getitem__(self, index):
        self.fetched.append(int(index))
        return self.inputs[index], self.classes[index]


def classifier(case, dtype):
    """
    Return a small classifier, whose first weights follow from the case's seed.
    """
    layers = nn.Sequential(nn.Linear(NUM_FEATURES, 4), nn.Tanh(), nn.Linear(4, NUM_CLASSES))
    rng = generator(case, "weights")
    for parameter in layers.parameters():
        first = torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
        parameter.data = first.to(dtype)
    return layers


def warm_up_one():
    """
    Import the frameworks that are installed. Collective: every rank must call it.

    Raises:
        BadInput: No framework is installed.
    """
    _warm_up([module for module in FRAMEWORKS if is_here(module)], 1)


def warm_up_all():
    """
    Import both frameworks. Collective: every rank must call it.

    Raises:
        BadInput: One of them is not installed.
    """
    _warm_up([module for module in FRAMEWORKS if is_here(module)], len(FRAMEWORKS))


def _warm_up(context, num_needed):
    if len(context) < num_needed:
        needed = " and " if num_needed == len(FRAMEWORKS) else " or "
        raise BadInput(
            f"Frameworks missing: {needed.join(FRAMEWORKS.values())} expected (got "
            f"{' and '.join(FRAMEWORKS[name] for name in context) or 'neither'}). Run pip install "
            "'ddp-lessons[frameworks]', and start the ranks anew."
        )
    quiet()
    with told():  # as in a script, which has no interactive prompt
        for module in context:
            importlib.import_module(module)
    first_ddp()
