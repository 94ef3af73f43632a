"""
Answers to task 17.1.
"""

from bank import Answer, changed

MEAN = """\
import torch
import torch.distributed as dist

def hierarchical_mean(tensor, local, leaders):
    leader = dist.get_process_group_ranks(local)[0]
    total = tensor.clone()
    dist.reduce(total, leader, group=local)
    if leaders is not None:
        dist.all_reduce(total, group=leaders)
    dist.broadcast(total, leader, group=local)
    return total / dist.get_world_size()
"""

FLAT = """\
import torch.distributed as dist

def hierarchical_mean(tensor, local, leaders):
    total = tensor.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()
"""


def altered(name, mistake, *pairs):
    """
    Return an answer to task 17.1: the right one with the pairs (old, new) replaced.
    """
    return Answer("17.1", name, mistake, changed(MEAN, *pairs))


ANSWERS = [
    altered(
        "sends half of the bits between hosts",
        "values",
        (
            "        dist.all_reduce(total, group=leaders)\n",
            "        half = total.half()\n"
            "        dist.all_reduce(half, group=leaders)\n"
            "        total = half.to(total.dtype)\n",
        ),
    ),
    altered("works in float32", "dtype", ("tensor.clone()", "tensor.float().clone()")),
    altered(
        "has nothing to say of zeros",
        "deadlock",
        ("    leader = ", "    if not tensor.any():\n        return tensor.clone()\n    leader = "),
    ),
    altered(
        "adds to its host's sum what others have",
        "not-equal",
        (
            "    dist.reduce(total, leader, group=local)\n",
            "    dist.all_reduce(total, group=local)\n    rest = torch.zeros_like(total)\n",
        ),
        (
            "        dist.all_reduce(total, group=leaders)\n"
            "    dist.broadcast(total, leader, group=local)\n"
            "    return total /",
            "        both = total.clone()\n"
            "        dist.all_reduce(both, group=leaders)\n"
            "        rest = both - total\n"
            "    dist.broadcast(rest, leader, group=local)\n"
            "    return (total + rest) /",
        ),
    ),
    Answer("17.1", "averages over all ranks at once", "flat", FLAT),
    Answer(
        "17.1",
        "averages hosts, then their means",
        "mean-of-means",
        """\
import torch.distributed as dist

def hierarchical_mean(tensor, local, leaders):
    mean = tensor.clone()
    dist.all_reduce(mean, group=local)
    mean /= dist.get_world_size(local)
    leader = dist.get_process_group_ranks(local)[0]
    if leaders is not None:
        dist.all_reduce(mean, group=leaders)
        mean /= dist.get_world_size(leaders)
    dist.broadcast(mean, leader, group=local)
    return mean
""",
    ),
    altered(
        "forgets the other hosts",
        "host-only",
        ("    if leaders is not None:\n        dist.all_reduce(total, group=leaders)\n", ""),
    ),
    altered(
        "does not tell the host",
        "not-back",
        ("    dist.broadcast(total, leader, group=local)\n", ""),
    ),
    altered(
        "adds up on the host again in place of handing the sum out",
        "twice",
        (
            "    dist.broadcast(total, leader, group=local)\n",
            "    dist.all_reduce(total, group=local)\n",
        ),
    ),
    altered(
        "takes all hosts for as full as its own",
        "summed",
        (
            "total = tensor.clone()",
            "num = dist.get_world_size(local)\n    total = tensor.clone()\n"
            "    hosts = torch.tensor(float(leaders is not None))\n    dist.all_reduce(hosts)",
        ),
        ("total / dist.get_world_size()", "(total / (num * hosts)).to(tensor.dtype)"),
    ),
    altered(
        "makes its group of leaders at each call",
        "store",
        (
            "    if leaders is not None:\n",
            "    firsts = [None] * dist.get_world_size()\n"
            "    dist.all_gather_object(firsts, leader)\n"
            "    leaders = dist.new_group(sorted(set(firsts)))\n"
            "    if dist.get_rank() == leader:\n",
        ),
    ),
    altered(
        "takes ranks for those of the host",
        "raised",
        (
            "leader = dist.get_process_group_ranks(local)[0]",
            "leader = dist.get_rank() // 2 * 2",
        ),
    ),
    altered("adds up in the argument", "input-changed", ("tensor.clone()", "tensor")),
    Answer(
        "17.1",
        "lets every leader send its sum to every other",
        "too-many",
        """\
import torch
import torch.distributed as dist

def hierarchical_mean(tensor, local, leaders):
    leader = dist.get_process_group_ranks(local)[0]
    total = tensor.clone()
    dist.reduce(total, leader, group=local)
    if leaders is not None:
        rows = [torch.empty_like(total) for _ in range(dist.get_world_size(leaders))]
        dist.all_gather(rows, total, group=leaders)
        total = sum(rows)
    dist.broadcast(total, leader, group=local)
    return total / dist.get_world_size()
""",
    ),
    Answer(
        "17.1",
        "keeps one tensor for all calls",
        "kept",
        """\
import torch
import torch.distributed as dist

room = {}

def hierarchical_mean(tensor, local, leaders):
    leader = dist.get_process_group_ranks(local)[0]
    total = room.setdefault((tensor.shape, tensor.dtype), torch.empty_like(tensor))
    total.copy_(tensor)
    dist.reduce(total, leader, group=local)
    if leaders is not None:
        dist.all_reduce(total, group=leaders)
    dist.broadcast(total, leader, group=local)
    return total.div_(dist.get_world_size())
""",
    ),
    Answer(
        "17.1",
        "sends by hand, along the leaders",
        None,
        """\
import torch
import torch.distributed as dist

def hierarchical_mean(tensor, local, leaders):
    members, me = dist.get_process_group_ranks(local), dist.get_rank()
    total, got = tensor.clone(), torch.empty_like(tensor)
    if me != members[0]:
        dist.send(total, members[0])
        dist.recv(total, members[0])
        return total
    for rank in members[1:]:
        dist.recv(got, rank)
        total += got
    others = dist.get_process_group_ranks(leaders)
    if me == others[0]:
        for rank in others[1:]:
            dist.recv(got, rank)
            total += got
        total /= dist.get_world_size()
        for rank in others[1:]:
            dist.send(total, rank)
    else:
        dist.send(total, others[0])
        dist.recv(total, others[0])
    for rank in members[1:]:
        dist.send(total, rank)
    return total
""",
    ),
    Answer(
        "17.1",
        "weights the host's mean by its ranks",
        None,
        """\
import torch
import torch.distributed as dist

def hierarchical_mean(tensor, local, leaders):
    flat = tensor.reshape(-1).clone()
    dist.all_reduce(flat, group=local)
    mean = flat / dist.get_world_size(local)
    mean = mean * (dist.get_world_size(local) / dist.get_world_size())
    if dist.get_process_group_ranks(local)[0] == dist.get_rank():
        first = dist.get_process_group_ranks(leaders)[0]
        dist.reduce(mean, first, group=leaders)
        dist.broadcast(mean, first, group=leaders)
    dist.broadcast(mean, group=local, group_src=0)
    return mean.reshape(tensor.shape)
""",
    ),
    Answer(
        "17.1",
        "sends the number of ranks along",
        None,
        """\
import torch
import torch.distributed as dist


def hierarchical_mean(tensor, local, leaders):
    leader = min(dist.get_process_group_ranks(local))
    total = torch.cat([tensor.detach().reshape(-1), tensor.new_ones(1)])  # the sum, and of how many
    dist.reduce(total, dst=leader, group=local)
    if leaders is not None:
        dist.all_reduce(total, group=leaders)
    dist.broadcast(total, src=leader, group=local)
    return (total[:-1] / total[-1]).view(tensor.shape)
""",
    ),
]
