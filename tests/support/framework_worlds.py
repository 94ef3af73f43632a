"""
Data and a model for the tests of frameworks, which are skipped where the frameworks are not
installed.
"""

import importlib.util

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from ddp_lessons.frameworks.stored import FRAMEWORKS

WORLD_SIZES = [1, 3]

needs_frameworks = pytest.mark.skipif(
    not all(importlib.util.find_spec(module) for module in FRAMEWORKS),
    reason="needs the frameworks: pip install -e '.[frameworks]'",
)


def samples(num=48, dtype=torch.float64):
    """
    Return a data set of images (num, 64) and labels, the same on every rank.
    """
    rng = torch.Generator().manual_seed(3)
    images = torch.randn(num, 64, generator=rng, dtype=torch.float64).to(dtype)
    return TensorDataset(images, torch.randint(0, 10, (num,), generator=rng))


def small_model(dtype=torch.float64):
    """
    Return a classifier of `samples`, the same on every rank.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(64, 7), nn.Tanh(), nn.Linear(7, 10)).to(dtype)
