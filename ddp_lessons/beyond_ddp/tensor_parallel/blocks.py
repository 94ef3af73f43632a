"""
What a transformer is made of, cut: an MLP, and attention by heads.

Shapes: N pieces of T places with C channels, H heads of C / H channels, w ranks; a rank has H / w
heads. Each of the two makes one all-reduce forward, and one backward if its input wants a gradient.
"""

from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from .cutting import share_of
from .layers import ColumnParallelLinear, RowParallelLinear


class ParallelMLP(nn.Module):
    """
    Two linear layers with a function between them that looks at each number alone.

    Collective: every rank must call forward; and backward, if the input wants a gradient.

    Args:
        widen: The first nn.Linear, the same on every rank. It is not kept.
        narrow: The second.
        group: The process group, or None for the default group.
        activation: The function between them.

    Raises:
        BadInput: What lies between the layers does not divide.

    Lesson: 15_beyond_ddp.
    """

    def __init__(
        self,
        widen: nn.Linear,
        narrow: nn.Linear,
        group: dist.ProcessGroup | None = None,
        activation: Callable[[Tensor], Tensor] = gelu,
    ) -> None:
        super().__init__()
        self.widen = ColumnParallelLinear(widen, group)
        self.narrow = RowParallelLinear(narrow, group)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """
        Return what the two layers make of x, the same on every rank.
        """
        return self.narrow(self.activation(self.widen(x)))


class ParallelAttention(nn.Module):
    """
    Attend with this rank's heads, and sum what they say.

    The first layer puts out queries, keys and values, one after the other. Each of the three is
    cut by itself, or a rank would have all queries and no values.

    Collective: every rank must call forward; and backward, if the input wants a gradient.

    Args:
        queries_keys_values: The nn.Linear from C to 3 C, the same on every rank. It is not kept.
        mix: The nn.Linear from C to C after it.
        num_heads: H, of all ranks together.
        group: The process group, or None for the default group.
        is_causal: Whether a place sees only those up to it.

    Raises:
        BadInput: Heads do not divide.

    Source: M. Shoeybi and others, "Megatron-LM", 2019, figure 3. Lesson: 15_beyond_ddp.
    """

    def __init__(
        self,
        queries_keys_values: nn.Linear,
        mix: nn.Linear,
        num_heads: int,
        group: dist.ProcessGroup | None = None,
        is_causal: bool = True,
    ) -> None:
        super().__init__()
        self.num_local_heads = share_of(num_heads, "heads", group)
        self.queries_keys_values = ColumnParallelLinear(queries_keys_values, group, num_stacked=3)
        self.mix = RowParallelLinear(mix, group)
        self.is_causal = is_causal

    def forward(self, x: Tensor) -> Tensor:
        """
        Return (N, T, C) of x (N, T, C), the same on every rank.
        """
        own = self.queries_keys_values(x)  # (N, T, C) -> (N, T, 3 C / w)
        parts = own.unflatten(-1, (3, self.num_local_heads, -1))
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)  # each (N, H / w, T, C / H)
        attended = scaled_dot_product_attention(queries, keys, values, is_causal=self.is_causal)
        return self.mix(attended.transpose(1, 2).flatten(2))  # (N, T, C / w) -> (N, T, C)
