"""
An optimizer class that an answer gets, and that counts its instances and their state.
"""

import weakref

import torch


class OptimizerCounts:
    """
    Counts of the optimizers that an answer makes from a class, and of the numbers in their state.

    Args:
        name: The class's name in torch.optim.

    Attributes:
        kind: The class to give to the answer. Its instances are counted here.
        num_made: Number of its instances.
        most: The most numbers of state that all instances had together right after a step.
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
            made.count()  # at once, before the answer can delete state
            return result

        members = {"__init__": __init__, "step": step, "__module__": base.__module__}
        self.kind = type(name, (base,), members)

    def count(self):
        """
        Count the numbers in the state of all instances now, and update `most`.
        """
        states = [state for one in self._alive for state in one.state.values()]
        values = [value for state in states for value in state.values()]
        now = sum(v.numel() for v in values if isinstance(v, torch.Tensor) and v.dim())
        self.most = max(self.most, now)
