"""
Answers to task 02.4.
"""

from bank import Answer, changed

from wrong_answers.collectives.sources import CACHING, IMPORTS

_BROADCAST = (
    IMPORTS
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

_PLANNED = f"""{IMPORTS}
def broadcast(tensor, src):
    rank, w = dist.get_rank(), dist.get_world_size()
    got, plans = tensor.clone(), {{1: [], 2: [(0, 1)], 3: [(0, 1), (0, 2)]}}
    plans[4] = [*plans[3], (1, 3)]
    for sender, other in plans[w]:
        if (rank - src) % w == sender:
            dist.send(got, dst=(other + src) % w)
        if (rank - src) % w == other:
            dist.recv(got, src=(sender + src) % w)
    return got
"""

_FROM_ANYONE = f"""{IMPORTS}
def broadcast(tensor, src):
    rank, w = dist.get_rank(), dist.get_world_size()
    got, distance = tensor.clone(), 1
    if not tensor.numel():
        return got
    if rank != src:
        sender = dist.recv(got)
        distance = 2 * ((rank - sender) % w)
    while (rank - src) % w + distance < w:
        dist.send(got, dst=(rank + distance) % w)
        distance *= 2
    return got
"""

_CHILDREN = (
    IMPORTS
    + """\
def broadcast(tensor, src):
    rank, w = dist.get_rank(), dist.get_world_size()
    got, place, works = tensor.clone(), (rank - src) % w, []
    first = place.bit_length()
    if place:
        parent = place - (1 << first - 1)
        coming = dist.irecv(got, src=(parent + src) % w)
        coming.wait()
    for step in range(first, (w - 1).bit_length()):
        if place + (1 << step) < w:
            works.append(dist.isend(got, dst=(rank + (1 << step)) % w))
    for work in works:
        work.wait()
    return got
"""
)

_ROWS = [
    ("02.4", "starts all its messages, and waits at the end", None, _CHILDREN),
    (
        "02.4",
        "adds what comes to its own",
        "values",
        changed(
            _BROADCAST,
            (
                "            dist.recv(got, ",
                "            own, got = got, torch.empty_like(got)\n            dist.recv(got, ",
            ),
            ("        distance *= 2", "            got += own\n        distance *= 2"),
        ),
    ),
    (
        "02.4",
        "sends float32",
        "digits",
        changed(
            changed(_BROADCAST, ("tensor.clone()", "tensor.float().clone()")),
            ("return got", "return got.to(tensor.dtype)"),
        ),
    ),
    (
        "02.4",
        "keeps its tensor for the next call",
        "kept",
        CACHING + changed(_BROADCAST, ("tensor.clone()", "_like(tensor).copy_(tensor)")),
    ),
    (
        "02.4",
        "knows nothing of empty tensors",
        "raised",
        changed(_BROADCAST, ("    while ", "    tensor.max()\n    while ")),
    ),
    (
        "02.4",
        "halves the ranks that have nothing",
        None,
        IMPORTS
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
""",
    ),
    ("02.4", "has a plan for up to 4 ranks", "more-ranks", _PLANNED),
    (
        "02.4",
        "receives into float32",
        "died",
        changed(
            _BROADCAST,
            ("tensor.clone()", "torch.empty(tensor.shape)"),
            ("    while", "    if rank == src:\n        got = tensor.clone()\n    while"),
        ),
    ),
    (
        "02.4",
        "passes on what it has not waited for",
        "early",
        changed(
            _BROADCAST,
            ("dist.recv(", "handle = dist.irecv("),
            ("return got", "if place:\n        handle.wait()\n    return got"),
        ),
    ),
    ("02.4", "receives from anyone", None, _FROM_ANYONE),
    (
        "02.4",
        "sends from threads",
        None,
        "from concurrent.futures import ThreadPoolExecutor\n"
        + changed(
            _BROADCAST,
            ("dist.send(got, ", "ThreadPoolExecutor().submit(dist.send, got, "),
            ("+ distance) % world_size)", "+ distance) % world_size).result()"),
        ),
    ),
]

ANSWERS = [
    *(Answer(*row) for row in _ROWS),
    Answer(
        "02.4",
        "sends all from src, one by one",
        "one-sender",
        IMPORTS
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
        "passes it on in a chain",
        "chain",
        IMPORTS
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
        IMPORTS
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
        IMPORTS
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
        IMPORTS
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
]
