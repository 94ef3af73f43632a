"""
What takes seconds the first time, and is no fault of an answer: done before a check's clock starts.
"""

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_lessons.process_group import rank_device


def first_ddp():
    """
    Make a DDP model: the first one of a process imports torch's compiler, about 800 modules.

    Collective: every rank must call it.
    """
    DistributedDataParallel(nn.Linear(1, 1).to(rank_device()))
