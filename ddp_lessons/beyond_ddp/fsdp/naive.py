"""
The naive way: gather all parameters when forward begins, and let autograd do the rest.

Shapes: a model of n numbers on w ranks; c = ceil(n / w).

    shard   (c,)     what this rank keeps, and what the optimizer sees
    whole   (w c,)   all shards, one after the other; the last ones are padding

The derivative of an all-gather is a reduce-scatter: rank r's shard is used by all ranks, so its
gradient is the sum of what all ranks have found for it.

What forward has gathered lives until backward is over, for autograd keeps it. So this saves the
memory of the optimizer's state and of gradients between steps, and none at the worst moment.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call

from ...replicas.alike import check_alike, tensor_facts
from ...replicas.buckets import broadcast_from_first
from ...sharded_optimizer.messages import all_gather, reduce_scatter


class NaiveSharded(nn.Module):
    """
    Shard a module's parameters, and gather all of them in each forward.

    Collective: every rank must make it, and run forward and backward as often as the others.

    Args:
        module: The module; its parameters are of one dtype and device, all are trained, and they
            become those of rank 0. Afterwards it has none of its own.
        group: The process group; None is the default group.

    Attributes:
        shard: (c,), this rank's part. After a backward, `shard.grad` is the mean over ranks.

    Raises:
        BadInput: Ranks differ.

    Lesson: 15_beyond_ddp.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        check_alike(tensor_facts(module.named_parameters()), group)
        self._group, self._world_size = group, dist.get_world_size(group)
        parameters = dict(module.named_parameters())
        broadcast_from_first(list(parameters.values()), group)
        flat = torch.cat([p.detach().flatten() for p in parameters.values()])
        length = -(-len(flat) // self._world_size)  # c
        padded = flat.new_zeros(self._world_size, length)
        padded.view(-1)[: len(flat)] = flat
        self.shard = nn.Parameter(padded[dist.get_rank(group)].clone())
        self._shapes = {name: p.shape for name, p in parameters.items()}
        for parameter in parameters.values():
            parameter.data = parameter.new_empty(0)
        self._hidden = [module]  # in a list: its parameters are not ours

    def forward(self, *args: object, **kwargs: object) -> object:
        """
        Gather, and run the module.

        Collective: every rank must call it.
        """
        whole = _Gather.apply(self.shard, self._group)  # (c,) -> (w c,)
        parts = whole.split([*(shape.numel() for shape in self._shapes.values()), self._padding])
        parameters = {
            name: part.view(shape)
            for (name, shape), part in zip(self._shapes.items(), parts, strict=False)
        }
        return functional_call(self._hidden[0], parameters, args, kwargs)

    @property
    def _padding(self):
        num_numbers = sum(shape.numel() for shape in self._shapes.values())
        return self._world_size * len(self.shard) - num_numbers


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shard, group):
        ctx.group, ctx.world_size = group, dist.get_world_size(group)
        whole = shard.new_empty(ctx.world_size * len(shard))
        all_gather(whole, shard, group)
        return whole

    @staticmethod
    def backward(ctx, gradient):
        row = gradient.new_empty(len(gradient) // ctx.world_size)
        reduce_scatter(row, gradient.contiguous(), ctx.group)
        return row / ctx.world_size, None
