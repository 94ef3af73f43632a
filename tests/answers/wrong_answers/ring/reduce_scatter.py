"""
Answers to task 03.1.
"""

from bank import Answer, changed

from wrong_answers.ring.sources import (
    CACHING,
    EVEN_FIRST,
    HEAD,
    IN_PIECES,
    IN_TURN,
    SEND_FIRST,
    SWAP,
    waiting_at_the_end,
)

_SKIPS_EMPTY = """\
    arrived = arriving
    works = [dist.irecv(arriving, src=left)] if len(arriving) else []
    if len(leaving):
        dist.send(leaving, dst=right)
    for work in works:
        work.wait()
"""


_BATCH = """\
    arrived = arriving
    sides = [(dist.isend, leaving, right), (dist.irecv, arriving, left)]
    for work in dist.batch_isend_irecv([dist.P2POp(*side) for side in sides]):
        work.wait()
"""

_SCATTER = """\
def reduce_scatter(chunks):
    rank, world_size, right, left = places()
    passing = chunks[right].clone()
    for step in range(world_size - 1):
        growing = chunks[(rank + 2 + step) % world_size]
        arrived = swap(passing, torch.empty_like(growing), left, right)
        passing = arrived + growing
    return passing
"""

_SCATTER_OF_THE_LESSON = """\
def reduce_scatter(chunks):
    rank, world_size, right, left = places()
    chunks = [chunk.clone() for chunk in chunks]
    for step in range(world_size - 1):
        growing = chunks[(rank - 2 - step) % world_size]
        leaving = chunks[(rank - 1 - step) % world_size]
        growing += swap(leaving, torch.empty_like(growing), right, left)
    return chunks[rank]
"""

_SCATTER_WHOLE = """\
def reduce_scatter(chunks):
    rank, world_size, right, left = places()
    passing = torch.cat(chunks)
    total = passing.clone()
    for step in range(world_size - 1):
        passing = swap(passing, torch.empty_like(total), right, left)
        total += passing
    return total.split([len(chunk) for chunk in chunks])[rank].clone()
"""

_SCATTER_DIRECT = """\
def reduce_scatter(chunks):
    rank, world_size, right, left = places()
    total = chunks[rank].clone()
    for far in range(1, world_size):
        to, come = (rank + far) % world_size, (rank - far) % world_size
        total += swap(chunks[to], torch.empty_like(total), to, come)
    return total
"""

_SCATTER_SEND_FIRST = """\
def reduce_scatter(chunks):
    rank, world_size, right, left = places()
    order = [(rank + 1 + step) % world_size for step in range(world_size)]
    sums = {c: chunks[c].clone() for c in order}
    for leaving, growing in zip(order, order[1:]):
        arrived = torch.empty_like(sums[growing])
        handle = dist.isend(sums[leaving], dst=left)
        dist.recv(arrived, src=right)
        handle.wait()
        sums[growing].add_(arrived)
    return sums[rank]
"""


_GROWING = "chunks[(rank + 2 + step) % world_size]"


def _scatter_in(dtype):
    return HEAD + changed(
        _SCATTER,
        ("chunks[right].clone()", f"chunks[right].to({dtype})"),
        (_GROWING, f"{_GROWING}.to({dtype})"),
        ("return passing", "return passing.to(chunks[0].dtype, copy=True)"),
    )


# One tensor holds both the chunk that arrives and the chunk that is passed on.
_SCATTER_IN_HALVES = """\
def reduce_scatter(chunks):
    rank, world_size, right, left = places()
    room = chunks[0].new_empty(2, max(map(len, chunks)))
    passing = room[0, : len(chunks[right])].copy_(chunks[right])
    for step in range(world_size - 1):
        growing = chunks[(rank + 2 + step) % world_size]
        arrived = room[1 - step % 2, : len(growing)]
        handle = dist.irecv(arrived, src=right)
        dist.send(passing.clone(), dst=left)
        total = torch.zeros_like(arrived)
        handle.wait()
        passing = arrived.add_(total.add_(growing))
    return passing.clone()
"""

_ROWS = [
    (
        "divides by the number of ranks",
        "values",
        HEAD + changed(_SCATTER, ("return passing", "return (passing / world_size).to(passing)")),
    ),
    ("waits for all at the end", "early", waiting_at_the_end(_SCATTER)),
    (
        "adds its numbers of another chunk",
        "mixed",
        HEAD + changed(_SCATTER, ("rank + 2 + step", "rank + 1 + step")),
    ),
    (
        "receives beside what it sends, and makes a tensor like what comes",
        None,
        HEAD + _SCATTER_IN_HALVES,
    ),
    (
        "adds with torch.stack and sum",
        "dtype",
        HEAD + changed(_SCATTER, ("arrived + growing", "torch.stack([arrived, growing]).sum(0)")),
    ),
    ("adds and sends in float32", "sent-dtype", _scatter_in("torch.float32")),
    (
        "keeps its sum for the next call",
        "kept",
        CACHING
        + HEAD
        + changed(_SCATTER, ("return passing", "return _like(passing).copy_(passing)")),
    ),
    ("sends no empty chunks", None, changed(HEAD, (SWAP, _SKIPS_EMPTY)) + _SCATTER),
    ("passes the whole tensor round and adds", "too-long", HEAD + _SCATTER_WHOLE),
    ("waits in send before it receives", "deadlock", changed(HEAD, (SWAP, SEND_FIRST)) + _SCATTER),
    ("takes turns, from rank 0 on", "turns", changed(HEAD, (SWAP, IN_TURN)) + _SCATTER),
    ("sends a chunk in two messages", "cost", changed(HEAD, (SWAP, IN_PIECES)) + _SCATTER),
    ("sends each chunk straight to its rank", "not-ring", HEAD + _SCATTER_DIRECT),
    (
        "starts with its own chunk, which ends one rank before home",
        "wrong-chunk",
        HEAD
        + changed(
            _SCATTER, ("chunks[right]", "chunks[rank]"), ("rank + 2 + step", "rank + 1 + step")
        ),
    ),
    (
        "passes on its own numbers only",
        "not-all",
        HEAD
        + changed(
            _SCATTER,
            ("(passing, ", "(chunks[(rank + 1 + step) % world_size], "),
        ),
    ),
    (
        "adds its own numbers once more at the end",
        "twice",
        HEAD + changed(_SCATTER, ("return passing", "return passing + chunks[rank]")),
    ),
    (
        "makes every buffer as long as its own chunk",
        "died",
        HEAD + changed(_SCATTER, ("torch.empty_like(growing)", "torch.empty_like(chunks[rank])")),
    ),
    (
        "adds into the chunks that it was given",
        "input-changed",
        HEAD
        + changed(_SCATTER, ("passing = arrived + growing", "passing = growing.add_(arrived)")),
    ),
    (
        "calls torch's reduce_scatter",
        "forbidden",
        HEAD
        + """\
def reduce_scatter(chunks):
    total = torch.empty_like(chunks[dist.get_rank()])
    dist.reduce_scatter(total, chunks)
    return total
""",
    ),
    ("turns to the right, as the lesson's ring", "to-the-right", HEAD + _SCATTER_OF_THE_LESSON),
    ("keeps its sums apart, and sends before it receives", None, HEAD + _SCATTER_SEND_FIRST),
    ("lets even ranks send first", None, changed(HEAD, (SWAP, EVEN_FIRST)) + _SCATTER),
    ("posts both sides in a batch", None, changed(HEAD, (SWAP, _BATCH)) + _SCATTER),
]

ANSWERS = [Answer("03.1", *row) for row in _ROWS]
