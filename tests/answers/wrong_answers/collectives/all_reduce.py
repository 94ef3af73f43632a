"""
Answers to task 02.1.
"""

from bank import Answer

from wrong_answers.collectives.sources import CACHING, IMPORTS


def _reduce(copy, result, op=""):
    return f"""{IMPORTS}
def all_reduce(tensor):
    total = {copy}
    dist.reduce(total, dst=0{op})
    dist.broadcast(total, src=0)
    return {result}
"""


_ROWS = [
    (
        "02.1",
        "adds in float64",
        "digits",
        _reduce("tensor.double().clone()", "total.to(tensor.dtype)"),
    ),
    (
        "02.1",
        "returns what torch adds in float64",
        "dtype",
        _reduce("tensor.double().clone()", "total"),
    ),
    (
        "02.1",
        "adds the root's numbers once more",
        "twice",
        _reduce("tensor.clone()", "total").replace(
            "    dist.broadcast", "    total += tensor * (dist.get_rank() == 0)\n    dist.broadcast"
        ),
    ),
    (
        "02.1",
        "returns the mean",
        "average",
        _reduce("tensor.clone()", "total / dist.get_world_size()"),
    ),
    (
        "02.1",
        "takes the greatest",
        "values",
        _reduce("tensor.clone()", "total", ", op=dist.ReduceOp.MAX"),
    ),
    ("02.1", "returns it flat", "shape", _reduce("tensor.flatten().clone()", "total")),
    (
        "02.1",
        "knows nothing of empty tensors",
        "raised",
        _reduce("tensor.clone()", "total.clamp(max=total.max())"),
    ),
    (
        "02.1",
        "keeps its tensor for the next call",
        "kept",
        CACHING + _reduce("_like(tensor).copy_(tensor)", "total"),
    ),
    ("02.1", "adds a zero instead of a copy", None, _reduce("tensor + 0", "total")),
]

ANSWERS = [
    *(Answer(*row) for row in _ROWS),
    Answer(
        "02.1",
        "only reduces",
        "not-everywhere",
        IMPORTS
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
        IMPORTS
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
        IMPORTS
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
        IMPORTS
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
        IMPORTS
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
        IMPORTS
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
        IMPORTS
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
        IMPORTS
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
        IMPORTS
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
