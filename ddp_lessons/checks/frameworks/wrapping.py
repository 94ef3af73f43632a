"""
Which DistributedDataParallel an answer trains: one that a framework made, or one of its own.
"""

import sys
from contextlib import contextmanager
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from ddp_lessons.checks.kit.on_rank.patching import replacing
from ddp_lessons.frameworks.stored import FRAMEWORKS

_FRAMEWORKS = (*FRAMEWORKS, "lightning")


@contextmanager
def noting_who_trains():
    """
    Note who made each wrapper through which forward goes while a block runs.

    Yields:
        dict: For each such DistributedDataParallel the framework that made it; None: the answer.
    """
    init, forward = DistributedDataParallel.__init__, DistributedDataParallel.forward
    makers, trained = {}, {}

    def noting_init(self, *args, **kwargs):
        makers[id(self)] = _maker()
        init(self, *args, **kwargs)

    def noting_forward(self, *args, **kwargs):
        trained[id(self)] = makers.get(id(self))
        return forward(self, *args, **kwargs)

    with replacing(DistributedDataParallel, __init__=noting_init, forward=noting_forward):
        yield trained


def _maker():
    # The framework that is nearest on the stack; None: it was the answer's own line.
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "").partition(".")[0]
        if name in _FRAMEWORKS:
            return name
        frame = frame.f_back
    return None
