"""
ZeRO stage 2: a rank keeps the mean gradient of its own pieces only, besides its part of the state.

Shapes: pieces, tables and rows are those of `pieces`; w ranks.

    backward    as soon as the gradients of a bucket are ready, a reduce-scatter takes them, and
                they are freed; what comes back is added to the pieces' gradients
    step        the inner optimizer makes its step, and an all-gather follows

So a rank never has all gradients at a time. The price is paid by who accumulates: each backward
sends, where stage 1 adds up and sends once.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING

import torch

from ..private.autograd import call_after_backward
from .zero1 import Zero1Optimizer

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.optim.optimizer import ParamsT


class Zero2Optimizer(Zero1Optimizer):
    """
    Shard any optimizer that looks at each number alone, and the gradients too.

    After a backward, parameters have no `.grad`: it is in the pieces, as a mean over ranks, and
    a second backward adds to it. `zero_grad` of this optimizer forgets it, and so does `step`.

    Collective: as Zero1Optimizer; and backward, which each rank must run as often as the others.

    Args:
        As Zero1Optimizer, but `averaged`.

    Raises:
        BadInput: As Zero1Optimizer.

    Source: S. Rajbhandari et al., "ZeRO", SC 2020, section 5.2. Lesson: 13_sharded_optimizer.
    """

    def __init__(
        self,
        params: ParamsT,
        optimizer_class: type[torch.optim.Optimizer],
        group: dist.ProcessGroup | None = None,
        **settings: object,
    ) -> None:
        self._round: _Round | None = None  # the backward that runs
        super().__init__(
            params,
            optimizer_class,
            group,
            averaged=False,
            **settings,  # type: ignore[arg-type]  # what Zero1Optimizer takes
        )

    def add_param_group(self, param_group: dict[str, object]) -> None:
        """
        Shard more parameters, and their gradients, with settings of their own.

        Collective: every rank must call it.
        """
        super().add_param_group(param_group)
        # A hook that held the optimizer would keep its state alive as long as the model.
        hook = functools.partial(_on_gradient, weakref.ref(self))
        for parameter in self.param_groups[-1]["params"]:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(hook)

    def reduce_gradients(self) -> None:
        """
        Send what backward has not sent: gradients that somebody has put into `.grad`, as torch's
        distributed checkpoint does to learn what the state looks like. All ranks must have put
        some there, or none.
        """
        if any(p.grad is not None for bucket in self.buckets() for p, _ in bucket.pairs):
            super().reduce_gradients()
            for bucket in self.buckets():
                for parameter, _ in bucket.pairs:
                    parameter.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """
        Forget the gradients of pieces, and a backward that was broken off.
        """
        self._round = None
        super().zero_grad(set_to_none)

    def _gradient_ready(self, parameter):
        if self._round is None:
            self._round = _Round(self)
            # The engine calls it when the backward that has just begun is over.
            call_after_backward(self._end_round)
        self._round.ready(parameter)

    def _end_round(self):
        this, self._round = self._round, None
        this.finish()


class _Round:
    """
    Send the buckets of one backward, in the same order on every rank, two at a time at most.
    """

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self._left = list(optimizer.buckets())
        self._missing = [{id(parameter) for parameter, _ in b.pairs} for b in self._left]
        self._sent = None

    def ready(self, parameter):
        """
        Note that a gradient is there, and send what is complete.
        """
        for missing in self._missing:
            missing.discard(id(parameter))
        while self._left and not self._missing[0]:
            self._send()

    @torch.no_grad()
    def _send(self):
        self._missing.pop(0)
        bucket = self._left.pop(0)
        sent = self._optimizer._send_gradients(bucket)
        for parameter, _ in bucket.pairs:
            parameter.grad = None
        self._wait()
        self._sent = sent

    def finish(self):
        """
        Send what is left: gradients that backward did not reach count as zeros.
        """
        while self._left:
            self._send()
        self._wait()

    @torch.no_grad()
    def _wait(self):
        if self._sent is not None:
            self._optimizer._finish_gradients(*self._sent)
        self._sent = None


def _on_gradient(optimizer_ref, parameter):
    optimizer = optimizer_ref()
    if optimizer is not None:
        optimizer._gradient_ready(parameter)
