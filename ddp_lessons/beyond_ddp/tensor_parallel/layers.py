"""
Two linear layers that send once: the first is cut by its outputs, the second by its inputs.

Shapes, for w ranks; torch's weight is (out, in), the transpose of what papers write:

    ColumnParallelLinear   x (..., in)       weight (out / w, in)   y (..., out / w), a rank's own
    RowParallelLinear      x (..., in / w)   weight (out, in / w)   y (..., out), summed over ranks

What the first puts out is what the second takes in, and anything that looks at each number alone
may stand between them. Names are those of papers, where columns of a weight are its outputs.
"""

import copy
from typing import Self

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import linear

from ...errors import BadInput
from ...workloads.seeds import seeded
from .cutting import cut_parameter, place_in
from .operators import enter, leave


class _ParallelLinear(nn.Module):
    """
    Hold what both have: a part of a weight, a bias or none, and the group.
    """

    def __init__(
        self, weight: nn.Parameter, bias: nn.Parameter | None, group: dist.ProcessGroup | None
    ) -> None:
        super().__init__()
        self.group = group
        self.weight, self.bias = weight, bias

    @classmethod
    def from_seed(
        cls,
        in_features: int,
        out_features: int,
        seed: int,
        group: dist.ProcessGroup | None = None,
        **settings: int,
    ) -> Self:
        """
        Make this rank's part of the nn.Linear that a seed gives.

        The whole layer is made and thrown away, so that ranks have what one process would have,
        however many they are. Of a model only one layer at a time is whole.

        Args:
            in_features: Inputs of the whole layer.
            out_features: Its outputs.
            seed: Layers of one seed are equal. The global random state is left as it was.
            group: The process group, or None for the default group.
            settings: What the class takes beyond that.

        Raises:
            BadInput: The layer does not divide.
        """
        with seeded(seed):
            full = nn.Linear(in_features, out_features)
        return cls(full, group, **settings)  # type: ignore[arg-type]  # as a subclass takes them

    def _check_inputs(self, x):
        if x.shape[-1] != self.weight.shape[1]:
            rank, world_size = place_in(self.group)
            raise BadInput(
                f"Other inputs: {type(self).__name__} takes {self.weight.shape[1]} a rank (got "
                f"{x.shape[-1]}, rank {rank} of {world_size}). First a ColumnParallelLinear, then "
                "a RowParallelLinear."
            )


class ColumnParallelLinear(_ParallelLinear):
    """
    Compute this rank's part of a linear layer's outputs, and keep it.

    Collective: backward is, if the input wants a gradient: one all-reduce.

    Args:
        full: The nn.Linear, the same on every rank. It is not kept.
        group: The process group, or None for the default group.
        num_stacked: How many equal layers lie one after the other in its outputs: 3 for queries,
            keys and values. Each is cut by itself.

    Raises:
        BadInput: Its outputs do not divide; or forward gets other inputs.

    Source: M. Shoeybi and others, "Megatron-LM", 2019, section 3. Lesson: 15_beyond_ddp, task 15.2.
    """

    def __init__(
        self, full: nn.Linear, group: dist.ProcessGroup | None = None, num_stacked: int = 1
    ) -> None:
        weight = cut_parameter(full.weight, 0, group, num_stacked)
        super().__init__(
            weight,  # type: ignore[arg-type]  # there is a weight
            cut_parameter(full.bias, 0, group, num_stacked),
            group,
        )

    def forward(self, x: Tensor) -> Tensor:
        """
        Return this rank's outputs, (..., out / w), of an input that all ranks have.
        """
        self._check_inputs(x)
        return linear(enter(x, self.group), self.weight, self.bias)


class RowParallelLinear(_ParallelLinear):
    """
    Compute what this rank's inputs add to a linear layer's outputs, and sum over ranks.

    Every rank has the whole bias. It is added once, after the sum.

    Collective: every rank must call forward: one all-reduce. Backward sends nothing.

    Args:
        full: The nn.Linear, the same on every rank. It is not kept.
        group: The process group, or None for the default group.

    Raises:
        BadInput: Its inputs do not divide; or forward gets other inputs.

    Source: M. Shoeybi and others, "Megatron-LM", 2019, section 3. Lesson: 15_beyond_ddp, task 15.2.
    """

    def __init__(self, full: nn.Linear, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(
            cut_parameter(full.weight, 1, group),  # type: ignore[arg-type]  # there is a weight
            copy.deepcopy(full.bias),
            group,
        )

    def forward(self, x: Tensor) -> Tensor:
        """
        Return all outputs, (..., out), on every rank, of this rank's inputs (..., in / w).
        """
        self._check_inputs(x)
        whole = leave(linear(x, self.weight), self.group)
        return whole if self.bias is None else whole + self.bias
