"""
The fast version: stage 2, whose all-gather goes on while the next forward already computes.

Shapes: pieces, tables and rows are those of `pieces`; w ranks.

    step       | inner step |
    messages                | bucket of layer 1 | bucket of layer 2 | bucket of layer 3 |
    forward                                     | layer 1 | layer 2           | layer 3 |
"""

import functools
import weakref

import torch

from .zero2 import Zero2Optimizer


class OverlappedOptimizer(Zero2Optimizer):
    """
    Shard as Zero2Optimizer, and wait for a bucket only when a layer is about to use it.

    Between a step and the next forward, parameters may still be old. Whoever reads them elsewhere
    calls `wait` first; the model's `state_dict` does so by itself.

    Collective: as Zero2Optimizer; `wait` is not.

    Args:
        module: The model, whose layers wait. The optimizer takes all of its parameters.
        optimizer_class: A class of optimizer, such as torch.optim.Adam.
        group: The process group; None is the default group.
        settings: What the class takes, such as lr.

    Source: S. Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.3, on overlap, turned round.
    Lesson: 13_sharded_optimizer.
    """

    def __init__(self, module, optimizer_class, group=None, **settings):
        self._pending = []  # what was sent and not yet waited for, in the order of forward
        super().__init__(module.parameters(), optimizer_class, group, **settings)
        this = weakref.ref(self)
        for part in module.modules():
            own = {id(parameter) for parameter in part.parameters(recurse=False)}
            if own:
                part.register_forward_pre_hook(functools.partial(_before_forward, this, own))
        module.register_state_dict_pre_hook(functools.partial(_before_state_dict, this))

    def step(self, closure=None):
        """
        Make a step; when it returns, parameters may still be under way.

        Collective: every rank must call it.
        """
        self.wait()
        return super().step(closure)

    def gather_parameters(self):
        """
        Start to give each rank the pieces of all others.

        Collective: every rank must call it.
        """
        self._pending = [self._send_pieces(bucket) for bucket in reversed(self.buckets())]

    @torch.no_grad()
    def wait(self, wanted=None):
        """
        Wait for parameters that are under way.

        Args:
            wanted: Ids of parameters; None: all of them.
        """
        num_waited = len(self._pending)
        if wanted is not None:
            places = [
                place
                for place, (bucket, *_) in enumerate(self._pending, start=1)
                if any(id(parameter) in wanted for parameter, _ in bucket.pairs)
            ]
            num_waited = max(places, default=0)
        for sent in self._pending[:num_waited]:
            self._finish_pieces(*sent)
        del self._pending[:num_waited]


def _before_forward(optimizer_ref, wanted, *_):
    optimizer = optimizer_ref()
    if optimizer is not None:
        optimizer.wait(wanted)


def _before_state_dict(optimizer_ref, *_):
    optimizer = optimizer_ref()
    if optimizer is not None:
        optimizer.wait()
