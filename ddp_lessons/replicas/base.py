"""
The base class of all replicas: the work that is the same however gradients are sent.

Shapes: a gradient has the shape and dtype of its parameter; buckets are in `buckets`.

    forward    rank 0's buffers are copied to all ranks, then the module runs
    backward   autograd fills `.grad` with this rank's gradient and calls a hook for each parameter
    its end    the engine calls `wait_for_gradients`: every `.grad` becomes the mean over ranks
"""

import contextlib
import functools
import weakref
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn

from ..errors import BadInput
from ..private.autograd import call_after_backward
from ..private.dispatcher import tree_leaves
from .alike import check_alike, fault_of, tensor_facts
from .buckets import broadcast_from_first


class Replica(nn.Module):
    """
    Keep a module equal on all ranks: start from rank 0's weights, average every gradient.

    A subclass says in `_averages` how gradients are sent. The rules are those of torch's
    `DistributedDataParallel`: a forward decides whether the next backward is averaged; it is
    averaged once; a parameter that autograd did not reach counts as a gradient of zero on this
    rank. One rule is kinder: DDP raises at the next forward if a rank left a parameter out; here
    the average is taken, and is zero if all ranks left it out. An optimizer with momentum or
    weight decay still moves such a parameter; with `find_unused_parameters` its gradient is left
    alone.

    Collective: every rank must make it, with the same module and arguments.

    Args:
        module: The module to wrap. Its weights and buffers become those of rank 0. Parameters
            that do not require gradients are left out, tied ones are averaged once. Gradients
            must be dense.
        group: The process group, or None for the default group.
        broadcast_buffers: Copy rank 0's buffers to all ranks before each synchronised forward.
        find_unused_parameters: Ask, with one more message a step, which parameters any rank used,
            and leave the gradients of all others as they were.
        options: The values that a subclass wants to be the same on every rank, by name.

    Raises:
        BadInput: The module differs between ranks, has nothing to train, or has sparse gradients.

    Source: torch documentation, `torch.nn.parallel.DistributedDataParallel`; S. Li et al.,
    "PyTorch Distributed", VLDB 2020, section 3. Lesson: 05_replicas.
    """

    def __init__(
        self,
        module: nn.Module,
        group: dist.ProcessGroup | None = None,
        broadcast_buffers: bool = True,
        find_unused_parameters: bool = False,
        **options: object,
    ) -> None:
        super().__init__()
        self.module = module
        self.group = group
        self.world_size = dist.get_world_size(group)
        self.broadcast_buffers = broadcast_buffers
        self.find_unused_parameters = find_unused_parameters
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in named]
        self.trained = [parameter for _, parameter in named]
        check_alike(
            {
                "fault": fault_of(module),
                "class": type(self).__name__,
                "broadcast_buffers": broadcast_buffers,
                "find_unused_parameters": find_unused_parameters,
                **options,
                **tensor_facts(module.named_parameters()),
                **tensor_facts(module.named_buffers()),
            },
            group,
        )
        self._will_sync = True  # False inside no_sync
        self._buffers_due = True
        self._awaited = False  # a backward whose gradients are to be averaged is to come
        self._callback_queued = False
        self._used = [False] * len(self.trained)
        self._weight: float | None = None
        self.broadcast_parameters()
        # A hook that held the replica would keep it and its buckets alive as long as the module,
        # and would go on averaging after the module was wrapped anew.
        for index, parameter in enumerate(self.trained):
            parameter.register_post_accumulate_grad_hook(
                functools.partial(_on_gradient, weakref.ref(self), index)
            )

    def broadcast_parameters(self) -> None:
        """
        Make all parameters and buffers equal to those of rank 0. Making a replica does it.

        Collective: every rank must call it.
        """
        broadcast_from_first([*self.module.parameters(), *self.module.buffers()], self.group)

    def forward(self, *args: object, **kwargs: object) -> object:
        """
        Run the module, after making buffers equal to rank 0's if they are due.

        Collective: every rank must call it, if the module has buffers. After a forward inside
        `no_sync` or without gradients, the next one sends nothing.
        """
        if self._buffers_due and self.broadcast_buffers:
            broadcast_from_first(self.module.buffers(), self.group)
        output = self.module(*args, **kwargs)
        # As in DDP a forward without gradients, or inside no_sync, leaves buffers for later.
        self._buffers_due = torch.is_grad_enabled() and self._will_sync
        if self._buffers_due:
            self._awaited, self._callback_queued = True, False
            self._start_backward()
            self._watch(output)
        return output

    def _watch(self, output):
        # A hook on the output runs in the backward that the learner called. A parameter's may run
        # in one within it, of a reentrant checkpoint, at whose end gradients are still missing.
        for leaf in tree_leaves(output):
            if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None:
                leaf.register_hook(functools.partial(_on_backward, weakref.ref(self)))

    def _queue_waiting(self):
        if self._awaited and not self._callback_queued:
            self._callback_queued = True
            call_after_backward(self.wait_for_gradients)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """
        Leave the gradients of forwards in this block local, so that they add up without messages.

        The next backward whose forward is outside averages all that has added up.
        """
        before, self._will_sync = self._will_sync, False
        try:
            yield
        finally:
            self._will_sync = before

    def weigh_by(self, num_samples: int) -> None:
        """
        Weigh this rank's next gradient by its share of all samples in place of 1 / world_size.

        With losses that are means over unequal shards, the averaged gradient is then that of
        one process on the whole batch. A rank without samples adds nothing, even if its gradient
        is not a number. Holds for one averaged backward.

        Collective: every rank must call it before that backward.

        Args:
            num_samples: How many samples this rank's loss is a mean of; 0 or more.

        Raises:
            BadInput: A rank gives a negative number, or no rank has a sample.
        """
        counts = torch.zeros(self.world_size, dtype=torch.int64, device=self.trained[0].device)
        counts[dist.get_rank(self.group)] = num_samples
        dist.all_reduce(counts, group=self.group)
        total, least, rank = counts.sum().item(), counts.min().item(), counts.argmin().item()
        if least < 0 or not total:
            raise BadInput(
                "Bad weights: every rank must give 0 samples or more, and one of them at least 1 "
                f"(got {least}, rank {rank} of {self.world_size}). Count the shard's samples."
            )
        self._weight = num_samples / total

    @torch.no_grad()
    def wait_for_gradients(self) -> None:
        """
        Finish averaging: afterwards `.grad` is the same on every rank.

        The autograd engine calls it at the end of backward, so that a training loop need not. Call
        it on a rank whose backward reached no parameter at all; otherwise it does nothing.

        Collective: every rank must reach it, through its backward or by a call.
        """
        if not self._awaited:
            return
        self._awaited = False
        averages = self._averages()
        used = self._used_by_any()
        for parameter, average, is_used in zip(self.trained, averages, used, strict=True):
            if is_used:
                self._store(parameter, average)
        self._used = [False] * len(self.trained)
        self._weight = None

    def _start_backward(self):
        """
        Forget an unfinished step; a subclass with state of its own extends it.
        """

    def _gradient_ready(self, index):
        """
        Hear that a gradient is complete; a subclass may send it at once.
        """

    def _averages(self):
        """
        Return the averaged gradients in the order of `trained`.
        """
        raise NotImplementedError

    def _weighted(self, parameter, out=None):
        """
        Return what this rank adds to the average: its gradient by its weight, or zeros.
        """
        out = torch.empty_like(parameter) if out is None else out
        # DDP, too, multiplies by 1 / world_size before it adds up: the roundings are the same.
        weight = 1 / self.world_size if self._weight is None else self._weight
        if parameter.grad is None or weight == 0:
            return out.zero_()
        return torch.mul(parameter.grad, weight, out=out)

    def _store(self, parameter, average):
        if parameter.grad is None:
            parameter.grad = average.clone()
        else:
            parameter.grad.copy_(average)

    def _used_by_any(self):
        if not self.find_unused_parameters:
            return [True] * len(self.trained)
        used = torch.tensor(self._used, dtype=torch.int32, device=self.trained[0].device)
        dist.all_reduce(used, op=dist.ReduceOp.MAX, group=self.group)
        return [bool(flag) for flag in used.tolist()]


def _on_backward(replica_ref, _):
    """
    Have the engine average gradients when the backward that has just begun is over.
    """
    replica = replica_ref()
    if replica is not None:
        replica._queue_waiting()


def _on_gradient(replica_ref, index, parameter):
    """
    Follow a gradient that autograd has just added to `parameter.grad`.
    """
    replica = replica_ref()
    if replica is None:
        return
    replica._used[index] = True  # also inside no_sync: the gradient waits to be averaged
    if not replica._awaited:
        return
    replica._queue_waiting()  # already done, unless the loss bypasses the output
    with torch.no_grad():
        replica._gradient_ready(index)
