"""
Hierarchical for any layout: one rank speaks for its host.

Legend: w ranks on h hosts, perhaps of different sizes. A tensor goes through the leader of its host
twice, and the other ranks wait meanwhile. Where hosts are even, `averages.hierarchical` lets all of
them send a part.
"""

import torch
import torch.distributed as dist

from .hosts import Hosts


def leaders_all_reduce(tensor: torch.Tensor, hosts: Hosts) -> None:
    """
    Add a tensor up over all ranks: on each host to its leader, among leaders, and back.

    Collective: every rank must call it.

    Args:
        tensor: Any shape and strides, changed in place. All ranks get the same bits.
        hosts: Hosts, as `split_hosts` returns them.

    Lesson: 17_many_machines, its exercise.
    """
    total = tensor.detach().contiguous()  # Gloo leaves out the numbers behind gaps
    dist.reduce(total, hosts.leader, group=hosts.local)
    if hosts.leaders is not None:
        dist.all_reduce(total, group=hosts.leaders)
    dist.broadcast(total, hosts.leader, group=hosts.local)
    tensor.detach().copy_(total)
