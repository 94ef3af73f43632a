"""
The maker of each DistributedDataParallel that an answer trains: a framework, or the answer itself.
"""

import sys
from contextlib import contextmanager
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from ddp_lessons.checks.kit.on_rank.patching import patched
from ddp_lessons.frameworks.stored import FRAMEWORKS

_FRAMEWORKS = (*FRAMEWORKS, "lightning")


@contextmanager
def noting_who_trains():
    """
    Note the maker of each DistributedDataParallel whose forward is called in a `with` block.

    Yields:
        dict: {id of the wrapper: name of the framework that made it, or None for the answer}.
    """
    init, forward = DistributedDataParallel.__init__, DistributedDataParallel.forward
    makers, trained = {}, {}

    def noting_init(self, *args, **kwargs):
        makers[id(self)] = _maker()
        init(self, *args, **kwargs)

    def noting_forward(self, *args, **kwargs):
        trained[id(self)] = makers.get(id(self))
        return forward(self, *args, **kwargs)

    with patched(DistributedDataParallel, __init__=noting_init, forward=noting_forward):
        yield trained


def _maker():
    # Return the framework with the nearest frame on the stack. None: the answer's own line made it.
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "").partition(".")[0]
        if name in _FRAMEWORKS:
            return name
        frame = frame.f_back
    return None
