"""
What takes seconds the first time, and is no fault of an answer: done before a check's clock starts.
"""

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_lessons.process_group import rank_device


def first_ddp():
    """
    Make a DDP model. The first one of a process connects ranks, and may import hundreds of modules.

    Collective: every rank must call it.
    """
    DistributedDataParallel(nn.Linear(1, 1).to(rank_device()))


def first_save():
    """
    Make a DDP model, and import torch's compiler, which distributed checkpoints bring with them.

    Collective: every rank must call it.
    """
    import torch._dynamo
    import torch.distributed.checkpoint.state_dict  # noqa: F401

    first_ddp()
