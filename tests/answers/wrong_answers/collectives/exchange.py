"""
Answers to task 02.3.
"""

from bank import Answer, changed

from wrong_answers.collectives.sources import CACHING, IMPORTS

_EXCHANGE = (
    IMPORTS
    + """\
def exchange(tensor, distance):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + distance) % world_size, (rank - distance) % world_size
    if left == rank:
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


_ROWS = [
    (
        "02.3",
        "copies what comes before it waits",
        "early",
        _exchange("""\
    works = [dist.irecv(coming := torch.empty_like(tensor), src=left)]
    works.append(dist.isend(tensor, dst=right))
    arrived = coming.clone()
    for work in works:
        work.wait()
"""),
    ),
    (
        "02.3",
        "receives over what is still being sent",
        "overwritten",
        _exchange("""\
    arrived.copy_(tensor)
    works = [dist.isend(arrived, dst=right), dist.irecv(arrived, src=left)]
    for work in works:
        work.wait()
"""),
    ),
    (
        "02.3",
        "lets rank 0 receive first, and all others send",
        "turns",
        _receives_first("rank == 0"),
    ),
    (
        "02.3",
        "adds what arrives to its own tensor",
        "values",
        _exchange("""\
    handle = dist.irecv(arrived, src=left)
    dist.send(tensor, dst=right)
    handle.wait()
    arrived += tensor
"""),
    ),
    (
        "02.3",
        "has no argument for the distance",
        "signature",
        changed(_EXCHANGE, ("(tensor, distance):", "(tensor):"), (" distance)", " 1)")),
    ),
    ("02.3", "sends float32", "digits", _sends_in("float")),
    (
        "02.3",
        "alone, returns its argument",
        "view",
        changed(_EXCHANGE, ("tensor.clone()", "tensor")),
    ),
    (
        "02.3",
        "keeps its tensor for the next call",
        "kept",
        CACHING + changed(_EXCHANGE, ("torch.empty_like(tensor)", "_like(tensor)")),
    ),
    (
        "02.3",
        "sends nothing where there is nothing to send",
        None,
        _exchange("""\
    if tensor.numel():
        handle = dist.irecv(arrived, src=left)
        dist.send(tensor, dst=right)
        handle.wait()
"""),
    ),
    (
        "02.3",
        "sends to one of 4 ranks",
        "more-ranks",
        changed(_EXCHANGE, ("dist.get_world_size()", "min(dist.get_world_size(), 4)")),
    ),
    (
        "02.3",
        "keeps its own also if there are two",
        "own",
        changed(_EXCHANGE, ("left == rank", "left == rank or world_size == 2")),
    ),
    (
        "02.3",
        "receives into float32",
        "died",
        changed(_EXCHANGE, ("torch.empty_like(tensor)", "torch.empty(tensor.shape)")),
    ),
    (
        "02.3",
        "receives into more room than it need",
        None,
        changed(
            _EXCHANGE,
            ("torch.empty_like(tensor)", "tensor.new_empty(tensor.numel() + 1)"),
            ("return arrived", "return arrived[:-1].view(tensor.shape).clone()"),
        ),
    ),
    (
        "02.3",
        "sends from a thread",
        None,
        "import threading\n"
        + _exchange("""\
    thread = threading.Thread(target=dist.send, args=(tensor, right))
    thread.start()
    dist.recv(arrived, src=left)
    thread.join()
"""),
    ),
]

ANSWERS = [
    *(Answer(*row) for row in _ROWS),
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
        "exchanges with its neighbours at every distance",
        "neighbour",
        changed(
            _EXCHANGE,
            ("(rank + distance) % world_size", "(rank + 1) % world_size"),
            ("(rank - distance) % world_size", "(rank - 1) % world_size"),
        ),
    ),
    Answer(
        "02.3",
        "sends to itself if the distance is a multiple of the number of ranks",
        "raised",
        changed(_EXCHANGE, ("left == rank", "world_size == 1")),
    ),
    Answer(
        "02.3",
        "sends first on even ranks, receives first on odd ones",
        "deadlock",
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
]
