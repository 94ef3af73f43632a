"""
What takes seconds the first time, and is no fault of an answer: done before a check's clock starts.
"""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_lessons.process_group import rank_device


def first_ddp():
    """
    Make a DDP model. The first one of a process connects ranks, and may import hundreds of modules.

    Collective: every rank must call it.
    """
    DistributedDataParallel(nn.Linear(1, 1).to(rank_device()))


def first_step():
    """
    Make a step of an optimizer. The first one of a process may import hundreds of modules.
    """
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.SGD([parameter], lr=0.1).step()


def import_compiler():
    """
    Import torch's compiler, as a first dispatch mode, device mesh or activation checkpoint does.
    """
    import torch._dynamo  # noqa: F401


def first_save():
    """
    Make a DDP model, and import torch's compiler, which distributed checkpoints bring with them.

    Collective: every rank must call it.
    """
    import torch.distributed.checkpoint.state_dict  # noqa: F401

    import_compiler()
    first_ddp()
