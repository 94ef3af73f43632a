"""
Several parameters in one flat tensor, of which each rank keeps a part.

Shapes: parameters of n numbers together, on w ranks; c = ceil(n / w).

    shard      (c,)     this rank's part, float32 say: the optimizer's parameter
    whole      (w c,)   all shards; the parameters are views of it. Its memory comes and goes
    gradients  (w c,)   this rank's gradients in the same places, until they are reduced
    row        (c,)     what the reduce-scatter leaves of them: the sum over ranks of this part

The padding, w c - n numbers, is sent too, and stays zero.
"""

from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
from torch import nn

from ...replicas.overlapped import outlast
from ...sharded_optimizer.messages import all_gather, reduce_scatter


class Flat:
    """
    Share out the numbers of some parameters, and bring them together again.

    Args:
        parameters: Parameters of one dtype and device, all trained or all frozen; at least one.
            They become views of `whole`, which has no memory until it is gathered.
        group: The process group; None is the default group.
        compute_dtype: The dtype in which they are gathered and used; None: their own.
        reduce_dtype: The dtype in which gradients are sent; None: that of compute.

    Attributes:
        parameters: The same.
        shard: (c,), this rank's part, in the dtype that the parameters had.
        num_numbers: n.
        num_own: How many of the shard's numbers are no padding.
        is_trained: Whether they require a gradient.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        group: dist.ProcessGroup | None = None,
        compute_dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
    ) -> None:
        self.parameters, self._group = list(parameters), group
        self.is_trained = self.parameters[0].requires_grad
        self._world_size = dist.get_world_size(group)
        numbers = torch.cat([p.detach().flatten() for p in self.parameters])
        self._length = -(-len(numbers) // self._world_size)
        self.num_numbers = len(numbers)
        start = min(len(numbers), dist.get_rank(group) * self._length)
        self.num_own = min(self._length, len(numbers) - start)
        padded = numbers.new_zeros(self._world_size, self._length)
        padded.view(-1)[: len(numbers)] = numbers
        own = padded[dist.get_rank(group)].clone()
        self.shard = nn.Parameter(own, requires_grad=self.is_trained)
        self._reduce_dtype = reduce_dtype or compute_dtype or own.dtype
        self._whole = padded.view(-1).to(compute_dtype or own.dtype)
        self._ends = {}  # parameter -> where in the whole it lies
        for parameter, part in zip(self.parameters, self._parts_of(self._whole), strict=True):
            self._ends[parameter] = part.storage_offset(), part.storage_offset() + part.numel()
            parameter.data = part
        self._num_bytes = self._whole.nbytes
        self._gathering: tuple | None = None  # what is under way, and what it reads
        self._reducing: tuple | None = None
        self._gradients: torch.Tensor | None = None
        self._arrived: set = set()
        self.free()

    def _parts_of(self, flat):
        # Views of a flat tensor in the places and shapes of the parameters, without the padding.
        sizes = [parameter.numel() for parameter in self.parameters]
        parts = flat[: sum(sizes)].split(sizes)
        return [part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)]

    @property
    def gathered_bytes(self) -> int:
        """
        How many bytes the whole takes now: 0 if it is freed.
        """
        return self._whole.untyped_storage().nbytes()

    @property
    def gradient_bytes(self) -> int:
        """
        How many bytes this rank's own gradients take now, before they are reduced.
        """
        return 0 if self._gradients is None else self._gradients.nbytes

    @property
    def has_all_gradients(self) -> bool:
        """
        Tell whether this backward has brought the gradients of all parameters.
        """
        return len(self._arrived) == len(self.parameters)

    def start_gather(self) -> None:
        """
        Ask all ranks for their shards, if the whole is neither there nor asked for.

        Collective: every rank must call it.
        """
        if self._gathering is None and not self.gathered_bytes:
            self._whole.untyped_storage().resize_(self._num_bytes)
            row = self.shard.detach().to(self._whole.dtype)
            work = all_gather(self._whole, row, self._group, async_op=True)
            self._gathering = work, row  # the row must live as long as it is read

    def wait(self) -> None:
        """
        Wait until the whole is there.
        """
        if self._gathering is None:
            return
        try:
            self._gathering[0].wait()
        except BaseException:
            self.free()  # what came is no good: the next gather asks anew
            raise
        self._gathering = None

    def free(self) -> None:
        """
        Give the memory of the whole back. The parameters must not be used until the next gather.
        """
        if self._gathering is not None:
            outlast(self._gathering[0])
        self._gathering = None
        self._whole.untyped_storage().resize_(0)

    def take_gradient(self, parameter: nn.Parameter) -> None:
        """
        Move a parameter's gradient to its place among the gradients, and add it to what is there.
        """
        if self._gradients is None:
            self._gradients = self._whole.new_zeros(
                self._world_size * self._length, dtype=self._reduce_dtype
            )
        assert parameter.grad is not None
        start, stop = self._ends[parameter]
        self._gradients[start:stop].view(parameter.shape).add_(parameter.grad)
        parameter.grad = None
        self._arrived.add(parameter)

    def start_reduce(self) -> None:
        """
        Send the gradients off, if there are any, so that each rank gets the sum of its part.

        Collective: every rank must call it.
        """
        sent, self._gradients = self._gradients, None
        if sent is None:
            return
        if sent.dtype == torch.float16:
            sent = sent.div_(self._world_size)  # a sum might be too large for it
        row = sent.new_empty(self._length)
        work = reduce_scatter(row, sent, self._group, async_op=True)
        self._reducing = work, row, sent

    def finish_reduce(self) -> None:
        """
        Wait for the sum that is under way, if one is, and add the mean to the shard's gradient.
        """
        if self._reducing is None:
            return
        (work, row, sent), self._reducing = self._reducing, None
        work.wait()
        mean = row.to(self.shard.dtype)
        if sent.dtype != torch.float16:
            mean.div_(self._world_size)
        self.shard.grad = mean if self.shard.grad is None else self.shard.grad.add_(mean)

    def end_backward(self) -> None:
        """
        Begin to count anew which gradients have come.
        """
        self._arrived.clear()

    def forget_gradients(self) -> None:
        """
        Drop gradients that were not sent, or not received.
        """
        if self._reducing is not None:
            outlast(self._reducing[0])
        self._gradients = self._reducing = None
        self._arrived.clear()

    def whole_numbers(self) -> dict[nn.Parameter, torch.Tensor]:
        """
        Return each parameter's numbers as the optimizer has them, {parameter: tensor}: copies.

        Collective: every rank must call it.
        """
        whole = self.shard.new_empty(self._world_size * self._length).detach()
        all_gather(whole, self.shard.detach(), self._group)
        return dict(zip(self.parameters, self._parts_of(whole), strict=True))

    def take_numbers(self, numbers: Mapping[nn.Parameter, torch.Tensor]) -> None:
        """
        Keep this rank's part of new numbers, {parameter: tensor}.
        """
        whole = self.shard.detach().new_zeros(self._world_size * self._length)
        for parameter, part in zip(self.parameters, self._parts_of(whole), strict=True):
            part.copy_(numbers[parameter])
        rank = dist.get_rank(self._group)
        self.shard.detach().copy_(whole.view(self._world_size, -1)[rank])
