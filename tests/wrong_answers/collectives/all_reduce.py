"""
Answers to exercise 02.
"""

from bank import Answer, changed

_IMPORTS = "import torch\nimport torch.distributed as dist\n\n"

_GATHER = (
    _IMPORTS
    + """\
def all_gather_unequal(tensor):
    world_size = dist.get_world_size()
    length = torch.tensor([len(tensor)], device=tensor.device)
    lengths = [torch.empty_like(length) for _ in range(world_size)]
    dist.all_gather(lengths, length)
    longest = max(int(n) for n in lengths)
    padded = tensor.new_zeros(longest)
    padded[: len(tensor)] = tensor
    parts = [torch.empty_like(padded) for _ in range(world_size)]
    dist.all_gather(parts, padded)
    return [part[: int(n)] for part, n in zip(parts, lengths)]
"""
)

_EXCHANGE = (
    _IMPORTS
    + """\
def exchange(tensor):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    if world_size == 1:
        return tensor.clone()
    arrived = torch.empty_like(tensor)
    handle = dist.irecv(arrived, src=left)
    dist.send(tensor, dst=right)
    handle.wait()
    return arrived
"""
)
_ITS_CALLS = """\
    handle = dist.irecv(arrived, src=left)
    dist.send(tensor, dst=right)
    handle.wait()
"""

_BROADCAST = (
    _IMPORTS
    + """\
def broadcast(tensor, src):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    got, place, distance = tensor.clone(), (rank - src) % world_size, 1
    while distance < world_size:
        if place < distance and place + distance < world_size:
            dist.send(got, dst=(rank + distance) % world_size)
        elif distance <= place < 2 * distance:
            dist.recv(got, src=(rank - distance) % world_size)
        distance *= 2
    return got
"""
)

_TREE = (
    _IMPORTS
    + """\
def broadcast(tensor, src):
    rank, w = dist.get_rank(), dist.get_world_size()
    got, p = tensor.clone(), (rank - src) % w
    if p:
        dist.recv(got, src=({0} + src) % w)
    for other in range({1}):
        if other < w:
            dist.send(got, dst=(other + src) % w)
    return got
"""
)

# What an answer that keeps its tensors begins with.
_KEPT = """\
import torch
_kept = {}

def _like(tensor, number=0):
    key = number, tensor.shape, tensor.dtype
    return _kept.setdefault(key, torch.empty_like(tensor))

"""


def _reduce(copy, result, op=""):
    return f"""{_IMPORTS}
def all_reduce(tensor):
    total = {copy}
    dist.reduce(total, dst=0{op})
    dist.broadcast(total, src=0)
    return {result}
"""


def _exchange(calls):
    return changed(_EXCHANGE, (_ITS_CALLS, calls))


def _receives_first(condition):
    return _exchange(f"""\
    if {condition}:
        dist.recv(arrived, src=left)
    dist.send(tensor, dst=right)
    if not ({condition}):
        dist.recv(arrived, src=left)
""")


def _sends_in(dtype):
    return _exchange(f"""\
    leaving = tensor.{dtype}().clone()
    handle = dist.irecv(arriving := torch.empty_like(leaving), src=left)
    dist.send(leaving, dst=right)
    handle.wait()
    arrived = arriving.to(tensor.dtype)
""")


# fmt: off
_MORE = [
    ("02.1", "adds in float64", "digits",
     _reduce("tensor.double().clone()", "total.to(tensor.dtype)")),
    ("02.1", "adds in float32", "digits",
     _reduce("tensor.float().clone()", "total.to(tensor.dtype)")),
    ("02.1", "adds whole numbers", "digits",
     _reduce("tensor.long().clone()", "total.to(tensor.dtype)")),
    ("02.1", "returns what torch adds in float64", "dtype",
     _reduce("tensor.double().clone()", "total")),
    ("02.1", "returns the mean", "values",
     _reduce("tensor.clone()", "total / dist.get_world_size()")),
    ("02.1", "takes the greatest", "values",
     _reduce("tensor.clone()", "total", ", op=dist.ReduceOp.MAX")),
    ("02.1", "returns it flat", "shape",
     _reduce("tensor.flatten().clone()", "total")),
    ("02.1", "knows nothing of empty tensors", "raised",
     _reduce("tensor.clone()", "total.clamp(max=total.max())")),
    ("02.1", "keeps its tensor for the next call", "kept",
     _KEPT + _reduce("_like(tensor).copy_(tensor)", "total")),
    ("02.1", "adds a zero instead of a copy", None,
     _reduce("tensor + 0", "total")),
    ("02.2", "fills up in float64", "wide-dtype",
     changed(
        changed(_GATHER, ("tensor.new_zeros(longest)", "torch.zeros(longest).double()")),
        ("part[: int(n)]",
        "part[: int(n)].to(tensor.dtype)"),
    )),
    ("02.2", "sends numbers as bfloat16", "digits",
     changed(
        changed(_GATHER, ("tensor.new_zeros(longest)", "torch.zeros(longest).bfloat16()")),
        ("part[: int(n)]",
        "part[: int(n)].to(tensor.dtype)"),
    )),
    ("02.2", "sends lengths as float16", "length-dtype",
     changed(_GATHER, ("[len(tensor)], ", "[len(tensor)], dtype=torch.float16, "))),
    ("02.2", "returns the last rank's first", "order",
     changed(_GATHER, ("zip(parts, lengths)", "list(zip(parts, lengths))[::-1]"))),
    ("02.2", "leaves out what is empty", "no-list",
     changed(_GATHER, ("zip(parts, lengths)]", "zip(parts, lengths) if n]"))),
    ("02.2", "knows nothing of empty tensors", "raised",
     changed(_GATHER, ("    length =", "    tensor[0]\n    length ="))),
    ("02.2", "puts the argument itself in the list", "view",
     changed(_GATHER, ("    return [", "    parts[dist.get_rank()] = tensor\n    return ["))),
    ("02.2", "keeps its tensors for the next call", "kept",
     _KEPT + changed(_GATHER, ("torch.empty_like(padded) for _", "_like(padded, r) for r"))),
    ("02.2", "puts the length before the numbers, and fills up to 1,000", "no-lengths",
     _IMPORTS
    + """\
def all_gather_unequal(tensor):
    room = tensor.new_zeros(1000)
    room[0] = len(tensor)
    room[1 : len(tensor) + 1] = tensor
    rows = [torch.empty_like(room) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, room)
    return [row[1 : int(row[0]) + 1].clone() for row in rows]
"""),
    ("02.2", "sends the tensors' bytes", None,
     _IMPORTS
    + """\
def all_gather_unequal(tensor):
    size = tensor.element_size()
    lengths = torch.empty(dist.get_world_size(), dtype=torch.int32)
    dist.all_gather_into_tensor(lengths, torch.tensor([len(tensor)], dtype=torch.int32))
    padded = torch.zeros(int(lengths.max()) * size, dtype=torch.uint8)
    padded[: len(tensor) * size] = tensor.view(torch.uint8)
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded)
    return [part[: n * size].view(tensor.dtype) for part, n in zip(parts, lengths.tolist())]
"""),
    ("02.2", "gathers nothing where all are empty", None,
     changed(
        _GATHER,
        ("    padded = ",
        """\
    if not longest:
        return [tensor.clone() for _ in lengths]
    padded = """),
    )),
    ("02.3", "lets rank 0 receive first, and all others send", "turns",
     _receives_first("rank == 0")),
    ("02.3", "lets the last rank receive first, and all others send", "turns",
     _receives_first("rank == world_size - 1")),
    ("02.3", "lets every third rank send first", "turns",
     _receives_first("rank % 3 > 0")),
    ("02.3", "waits for its isend before it receives", "deadlock",
     _exchange("""\
    dist.isend(tensor, dst=right).wait()
    dist.recv(arrived, src=left)
""")),
    ("02.3", "sends float32", "digits",
     _sends_in("float")),
    ("02.3", "sends float64", "digits",
     _sends_in("double")),
    ("02.3", "receives from anyone, which fails for 0 numbers", "raised",
     _exchange("""\
    handle = dist.irecv(arrived)
    dist.send(tensor, dst=right)
    handle.wait()
""")),
    ("02.3", "alone, returns its argument", "view",
     changed(_EXCHANGE, ("tensor.clone()", "tensor"))),
    ("02.3", "keeps its tensor for the next call", "kept",
     _KEPT + changed(_EXCHANGE, ("torch.empty_like(tensor)", "_like(tensor)"))),
    ("02.3", "sends nothing where there is nothing to send", None,
     _exchange("""\
    if tensor.numel():
        handle = dist.irecv(arrived, src=left)
        dist.send(tensor, dst=right)
        handle.wait()
""")),
    ("02.4", "passes it on in a heap, two for each", "chain",
     _TREE.format("(p - 1) // 2", "2 * p + 1, 2 * p + 3")),
    ("02.4", "gives three to each", "one-sender",
     _TREE.format("(p - 1) // 3", "3 * p + 1, 3 * p + 4")),
    ("02.4", "knows the rounds of 4 ranks only", "not-everywhere",
     _TREE.replace("range({1})", "{{0: (1, 2), 1: (3,)}}.get(p, ())")
    .replace("if p:", "if 0 < p < 4:")
    .format("p // 3")),
    ("02.4", "sends float32", "digits",
     changed(
        changed(_BROADCAST, ("tensor.clone()", "tensor.float().clone()")),
        ("return got",
        "return got.to(tensor.dtype)"),
    )),
    ("02.4", "keeps its tensor for the next call", "kept",
     _KEPT + changed(_BROADCAST, ("tensor.clone()", "_like(tensor).copy_(tensor)"))),
    ("02.4", "knows nothing of empty tensors", "raised",
     changed(_BROADCAST, ("    while ", "    tensor.max()\n    while "))),
    ("02.4", "halves the ranks that have nothing", None,
     _IMPORTS
    + """\
def broadcast(tensor, src):
    rank, w = dist.get_rank(), dist.get_world_size()
    got, place, first, end = tensor.clone(), (rank - src) % w, 0, w
    while end - first > 1:
        middle = (first + end + 1) // 2
        if place == first:
            dist.send(got, dst=(middle + src) % w)
        if place == middle:
            dist.recv(got, src=(first + src) % w)
        first, end = (middle, end) if place >= middle else (first, middle)
    return got
"""),
]
# fmt: on

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
    Answer(
        "02.2",
        "gathers tensors as if all were as long as its own",
        "no-lengths",
        _IMPORTS
        + """\
def all_gather_unequal(tensor):
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return parts
""",
    ),
    Answer(
        "02.2",
        "learns the lengths and does not fill up",
        "died",
        _IMPORTS
        + """\
def all_gather_unequal(tensor):
    length = torch.tensor([len(tensor)])
    lengths = [torch.empty_like(length) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, length)
    parts = [torch.empty_like(tensor) for _ in lengths]
    dist.all_gather(parts, tensor)
    return parts
""",
    ),
    Answer(
        "02.2",
        "gathers into places of unequal lengths",
        "raised",
        changed(
            _GATHER,
            (
                "torch.empty_like(padded) for _ in range(world_size)",
                "tensor.new_empty(int(n)) for n in lengths",
            ),
        ),
    ),
    Answer(
        "02.2",
        "keeps what was filled up",
        "padding",
        changed(_GATHER, ("part[: int(n)]", "part")),
    ),
    Answer(
        "02.2",
        "cuts all parts to its own length",
        "own-length",
        changed(_GATHER, ("part[: int(n)]", "part[: len(tensor)]")),
    ),
    Answer(
        "02.2",
        "sends lengths in the dtype of the tensor",
        "length-dtype",
        changed(_GATHER, ("[len(tensor)], device", "[len(tensor)], dtype=tensor.dtype, device")),
    ),
    Answer(
        "02.2",
        "cuts where the zeros begin",
        "zeros",
        _IMPORTS
        + """\
def all_gather_unequal(tensor):
    padded = tensor.new_zeros(1000)
    padded[: len(tensor)] = tensor
    parts = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, padded)
    return [part[part != 0] for part in parts]
""",
    ),
    Answer(
        "02.2",
        "gathers objects",
        "objects",
        _IMPORTS
        + """\
def all_gather_unequal(tensor):
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, tensor)
    return parts
""",
    ),
    Answer(
        "02.2",
        "fills up to 1,000 numbers",
        "too-wide",
        changed(_GATHER, ("max(int(n) for n in lengths)", "1000")),
    ),
    Answer(
        "02.2",
        "fills up with float32",
        "dtype",
        changed(_GATHER, ("tensor.new_zeros(longest)", "torch.zeros(longest)")),
    ),
    Answer(
        "02.2",
        "gathers the lengths twice",
        "cost",
        changed(
            _GATHER,
            (
                "    longest = max",
                """\
    dist.all_gather(lengths, length)
    longest = max""",
            ),
        ),
    ),
    Answer(
        "02.2",
        "returns one long tensor",
        "no-list",
        changed(
            _GATHER,
            (
                "return [part[: int(n)] for part, n in zip(parts, lengths)]",
                "return torch.cat([part[: int(n)] for part, n in zip(parts, lengths)])",
            ),
        ),
    ),
    Answer(
        "02.2",
        "broadcasts from each rank in turn",
        "forbidden",
        _IMPORTS
        + """\
def all_gather_unequal(tensor):
    length = torch.tensor([len(tensor)])
    lengths = [torch.empty_like(length) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, length)
    parts = [tensor.new_empty(int(n)) for n in lengths]
    parts[dist.get_rank()] = tensor.clone()
    for src, part in enumerate(parts):
        dist.broadcast(part, src=src)
    return parts
""",
    ),
    Answer(
        "02.2",
        "fills up in front, and gathers into one table",
        None,
        _IMPORTS
        + """\
def all_gather_unequal(x):
    w = dist.get_world_size()
    n = torch.empty(w, dtype=torch.int64, device=x.device)
    dist.all_gather_into_tensor(n, torch.tensor([x.numel()], device=x.device))
    most = int(n.max())
    table = x.new_empty(w * most)
    dist.all_gather_into_tensor(table, torch.cat([x.new_empty(most - len(x)), x]))
    return tuple(row[most - k :] for row, k in zip(table.view(w, most), n.tolist()))
""",
    ),
    Answer(
        "02.3",
        "sends first on every rank",
        "deadlock",
        changed(
            _EXCHANGE,
            (
                _ITS_CALLS,
                """\
    dist.send(tensor, dst=right)
    dist.recv(arrived, src=left)
""",
            ),
        ),
    ),
    Answer(
        "02.3",
        "receives first on every rank",
        "deadlock",
        changed(
            _EXCHANGE,
            (
                _ITS_CALLS,
                """\
    dist.recv(arrived, src=left)
    dist.send(tensor, dst=right)
""",
            ),
        ),
    ),
    Answer(
        "02.3",
        "trusts in buffers for small tensors",
        "deadlock",
        changed(
            _EXCHANGE,
            (
                _ITS_CALLS,
                """\
    if tensor.nbytes > 1024:
        handle = dist.irecv(arrived, src=left)
        dist.send(tensor, dst=right)
        handle.wait()
    else:
        dist.send(tensor, dst=right)
        dist.recv(arrived, src=left)
""",
            ),
        ),
    ),
    Answer(
        "02.3",
        "drops the handle of its send",
        "unwaited",
        changed(
            _EXCHANGE,
            (
                _ITS_CALLS,
                """\
    dist.isend(tensor, dst=right)
    dist.recv(arrived, src=left)
""",
            ),
        ),
    ),
    Answer(
        "02.3",
        "does not wait for what comes",
        "unwaited",
        changed(
            _EXCHANGE,
            (
                _ITS_CALLS,
                """\
    dist.irecv(arrived, src=left)
    dist.send(tensor, dst=right)
""",
            ),
        ),
    ),
    Answer(
        "02.3",
        "sends to the left",
        "direction",
        changed(
            _EXCHANGE,
            (
                _ITS_CALLS,
                """\
    handle = dist.irecv(arrived, src=right)
    dist.send(tensor, dst=left)
    handle.wait()
""",
            ),
        ),
    ),
    Answer(
        "02.3",
        "returns what it had",
        "own",
        changed(_EXCHANGE, ("    return arrived", "    return tensor.clone()")),
    ),
    Answer(
        "02.3",
        "receives over its argument",
        "input-changed",
        changed(
            _EXCHANGE,
            (
                _ITS_CALLS,
                """\
    handle = dist.isend(tensor.clone(), dst=right)
    dist.recv(tensor, src=left)
    handle.wait()
    arrived = tensor.clone()
""",
            ),
        ),
    ),
    Answer(
        "02.3",
        "lets rank 0 begin, and the others follow one by one",
        "turns",
        changed(
            _EXCHANGE,
            (
                _ITS_CALLS,
                """\
    if rank == 0:
        dist.send(tensor, dst=right)
        dist.recv(arrived, src=left)
    else:
        dist.recv(arrived, src=left)
        dist.send(tensor, dst=right)
""",
            ),
        ),
    ),
    Answer(
        "02.3",
        "sends two halves",
        "cost",
        changed(
            _EXCHANGE,
            (
                _ITS_CALLS,
                """\
    for mine, place in zip(tensor.view(-1).chunk(2), arrived.view(-1).chunk(2)):
        handle = dist.irecv(place, src=left)
        dist.send(mine, dst=right)
        handle.wait()
""",
            ),
        ),
    ),
    Answer(
        "02.3",
        "gathers all tensors for one of them",
        "forbidden",
        changed(
            _EXCHANGE,
            (
                _ITS_CALLS,
                """\
    everyone = [torch.empty_like(tensor) for _ in range(world_size)]
    dist.all_gather(everyone, tensor)
    arrived = everyone[left]
""",
            ),
        ),
    ),
    Answer(
        "02.3",
        "sends to itself if it is alone",
        "raised",
        changed(_EXCHANGE, ("world_size == 1", "world_size == 0")),
    ),
    Answer(
        "02.3",
        "has no rank to the right of the last",
        "raised",
        changed(_EXCHANGE, ("(rank + 1) % world_size, (", "rank + 1, (")),
    ),
    Answer(
        "02.3",
        "starts both calls as a batch",
        None,
        changed(
            _EXCHANGE,
            (
                _ITS_CALLS,
                """\
    ops = [dist.P2POp(dist.isend, tensor, right), dist.P2POp(dist.irecv, arrived, left)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
""",
            ),
        ),
    ),
    Answer(
        "02.3",
        "sends first on even ranks, receives first on odd ones",
        None,
        changed(
            _EXCHANGE,
            (
                _ITS_CALLS,
                """\
    if rank % 2:
        dist.recv(arrived, src=left)
    dist.send(tensor, dst=right)
    if rank % 2 == 0:
        dist.recv(arrived, src=left)
""",
            ),
        ),
    ),
    Answer(
        "02.4",
        "sends all from src, one by one",
        "one-sender",
        _IMPORTS
        + """\
def broadcast(tensor, src):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    got, place = tensor.clone(), (rank - src) % world_size
    if place == 0:
        for distance in range(1, world_size):
            dist.send(got, dst=(src + distance) % world_size)
    else:
        dist.recv(got, src=src)
    return got
""",
    ),
    Answer(
        "02.4",
        "starts all sends of src at once",
        "one-sender",
        _IMPORTS
        + """\
def broadcast(tensor, src):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    got, place = tensor.clone(), (rank - src) % world_size
    others = [other for other in range(world_size) if other != src]
    if place == 0:
        for handle in [dist.isend(got, dst=other) for other in others]:
            handle.wait()
    else:
        dist.recv(got, src=src)
    return got
""",
    ),
    Answer(
        "02.4",
        "passes it on in a chain",
        "chain",
        _IMPORTS
        + """\
def broadcast(tensor, src):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    got, place = tensor.clone(), (rank - src) % world_size
    if place > 0:
        dist.recv(got, src=(rank - 1) % world_size)
    if place < world_size - 1:
        dist.send(got, dst=(rank + 1) % world_size)
    return got
""",
    ),
    Answer(
        "02.4",
        "forgets src",
        "other-root",
        changed(_BROADCAST, ("(rank - src) % world_size", "rank")),
    ),
    Answer(
        "02.4",
        "sends beyond the last place",
        "raised",
        changed(
            _BROADCAST,
            (
                """\
if place < distance and place + distance < world_size:
            dist.send(got, dst=(rank + distance) % world_size)""",
                """\
if place < distance:
            dist.send(got, dst=rank + distance)""",
            ),
        ),
    ),
    Answer(
        "02.4",
        "sends round to a rank that has it",
        "deadlock",
        changed(
            _BROADCAST, ("place < distance and place + distance < world_size", "place < distance")
        ),
    ),
    Answer(
        "02.4",
        "rounds log2 down",
        "not-everywhere",
        changed(_BROADCAST, ("while distance < world_size", "while 2 * distance <= world_size")),
    ),
    Answer(
        "02.4",
        "sends on every rank in every round",
        "cost",
        _IMPORTS
        + """\
def broadcast(tensor, src):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    got, place = tensor.clone(), (rank - src) % world_size
    distance = 1
    while distance < world_size:
        arrived = torch.empty_like(got)
        handle = dist.isend(got, dst=(rank + distance) % world_size)
        dist.recv(arrived, src=(rank - distance) % world_size)
        handle.wait()
        got = arrived if distance <= place < 2 * distance else got
        distance *= 2
    return got
""",
    ),
    Answer(
        "02.4",
        "calls torch's broadcast",
        "forbidden",
        _IMPORTS
        + """\
def broadcast(tensor, src):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    got, place = tensor.clone(), (rank - src) % world_size
    dist.broadcast(got, src=src)
    return got
""",
    ),
    Answer(
        "02.4",
        "writes into its argument, as torch does",
        "view",
        changed(_BROADCAST, ("tensor.clone()", "tensor")),
    ),
    Answer(
        "02.4",
        "writes into its argument and returns a copy",
        "input-changed",
        changed(
            changed(_BROADCAST, ("tensor.clone()", "tensor")), ("return got", "return got.clone()")
        ),
    ),
    Answer(
        "02.4",
        "takes the widest distance first, and waits at the end",
        None,
        _IMPORTS
        + """\
def broadcast(tensor, src):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    got, place = tensor.clone(), (rank - src) % world_size
    handles = []
    for bit in reversed(range((world_size - 1).bit_length())):
        distance = 1 << bit
        if place % (2 * distance) == 0 and place + distance < world_size:
            handles.append(dist.isend(got, dst=(rank + distance) % world_size))
        elif place % (2 * distance) == distance:
            dist.recv(got, src=(rank - distance) % world_size)
    for handle in handles:
        handle.wait()
    return got
""",
    ),
    *(Answer(*row) for row in _MORE),
]
