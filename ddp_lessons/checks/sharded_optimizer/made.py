"""
A class of optimizer that an answer is given, which notes what is made of it.
"""

import weakref

import torch


class Made:
    """
    Note the optimizers that an answer makes of the class that it is given, and their state.

    Args:
        name: The class's name in torch.optim.

    Attributes:
        kind: That class, which notes.
        num_made: How many were made of it.
        most: The most numbers of state that all of them had at one time, right after a step.
    """

    def __init__(self, name):
        self.num_made = self.most = 0
        self._alive = weakref.WeakSet()
        base, made = getattr(torch.optim, name), self

        def __init__(self, *args, **kwargs):
            base.__init__(self, *args, **kwargs)
            made.num_made += 1
            made._alive.add(self)

        def step(self, closure=None):
            result = base.step(self, closure)
            made.count()  # before anything is thrown away again
            return result

        members = {"__init__": __init__, "step": step, "__module__": base.__module__}
        self.kind = type(name, (base,), members)

    def count(self):
        """
        Count the state that there is now.
        """
        states = [state for one in self._alive for state in one.state.values()]
        values = [value for state in states for value in state.values()]
        now = sum(v.numel() for v in values if isinstance(v, torch.Tensor) and v.dim())
        self.most = max(self.most, now)
