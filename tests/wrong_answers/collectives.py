"""
Answers to exercise 02.
"""

from bank import Answer

_IMPORTS = "import torch\nimport torch.distributed as dist\n\n"

ANSWERS = [
    Answer(
        "02.1",
        "only reduces",
        "not-everywhere",
        _IMPORTS
        + """\
def all_reduce(tensor):
    total = tensor.clone()
    dist.reduce(total, dst=0)
    return total
""",
    ),
    Answer(
        "02.1",
        "sends from another rank than it added on",
        "no-sum",
        _IMPORTS
        + """\
def all_reduce(tensor):
    total = tensor.clone()
    dist.reduce(total, dst=0)
    total = total if dist.get_rank() == 0 else tensor.clone()
    dist.broadcast(total, src=dist.get_world_size() - 1)
    return total
""",
    ),
    Answer(
        "02.1",
        "sends first and adds then",
        "wrong-order",
        _IMPORTS
        + """\
def all_reduce(tensor):
    total = tensor.clone()
    dist.broadcast(total, src=0)
    dist.reduce(total, dst=0)
    dist.broadcast(total, src=0)
    return total
""",
    ),
    Answer(
        "02.1",
        "lets only rank 0 broadcast",
        "deadlock",
        _IMPORTS
        + """\
def all_reduce(tensor):
    total = tensor.clone()
    dist.reduce(total, dst=0)
    if dist.get_rank() == 0:
        dist.broadcast(total, src=0)
    return total
""",
    ),
    Answer(
        "02.1",
        "calls torch's all_reduce",
        "forbidden",
        _IMPORTS
        + """\
def all_reduce(tensor):
    total = tensor.clone()
    dist.all_reduce(total)
    return total
""",
    ),
    Answer(
        "02.1",
        "writes into its argument",
        "input-changed",
        _IMPORTS
        + """\
def all_reduce(tensor):
    dist.reduce(tensor, dst=0)
    dist.broadcast(tensor, src=0)
    return tensor
""",
    ),
    Answer(
        "02.1",
        "does not wait for the broadcast",
        "unwaited",
        _IMPORTS
        + """\
def all_reduce(tensor):
    total = tensor.clone()
    dist.reduce(total, dst=0)
    dist.broadcast(total, src=0, async_op=True)
    return total
""",
    ),
    Answer(
        "02.1",
        "reduces to every rank in turn",
        "cost",
        _IMPORTS
        + """\
def all_reduce(tensor):
    total = tensor.clone()
    for rank in range(dist.get_world_size()):
        part = tensor.clone()
        dist.reduce(part, dst=rank)
        if rank == dist.get_rank():
            total = part
    return total
""",
    ),
    Answer(
        "02.1",
        "adds on the last rank",
        None,
        _IMPORTS
        + """\
def all_reduce(tensor):
    last = dist.get_world_size() - 1
    total = tensor.detach().clone()
    handle = dist.reduce(total, last, async_op=True)
    handle.wait()
    dist.broadcast(total, last)
    return total
""",
    ),
]
