"""
What the modules of this package ask of a group and of its samples.
"""

import torch.distributed as dist

from ..errors import BadInput


def device_of(group: dist.ProcessGroup | None) -> str:
    """
    Return the name of the device on which a group's messages must lie.
    """
    return "cuda" if dist.get_backend(group) == "nccl" else "cpu"


def need_samples(num_global: float, group: dist.ProcessGroup | None, least: int = 1) -> None:
    """
    Refuse to go on with too few samples. All ranks know the number, so all of them raise.

    Raises:
        BadInput: There are fewer than `least` over all ranks.
    """
    if num_global < least:
        raise BadInput(
            f"No samples: expected {least} or more over all ranks (got {num_global:.0f}, rank "
            f"{dist.get_rank(group)} of {dist.get_world_size(group)}). Look at what each rank has."
        )
