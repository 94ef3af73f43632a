"""
Answers to task 03.2.
"""

from bank import Answer, changed

from wrong_answers.ring.sources import (
    CACHING,
    EVEN_FIRST,
    HEAD,
    IN_TURN,
    SEND_FIRST,
    SWAP,
    waiting_at_the_end,
)

# fmt: on
_GATHER = """\
def all_gather(chunk, lengths):
    rank, world_size, right, left = places()
    parts = [chunk.new_empty(n) for n in lengths]
    parts[rank].copy_(chunk)
    for step in range(world_size - 1):
        leaving = parts[(rank + step) % world_size]
        swap(leaving, parts[(rank + 1 + step) % world_size], left, right)
    return parts
"""

_GATHER_OF_THE_LESSON = """\
def all_gather(chunk, lengths):
    rank, world_size, right, left = places()
    parts = [chunk.new_empty(n) for n in lengths]
    parts[rank].copy_(chunk)
    for step in range(world_size - 1):
        leaving = parts[(rank - step) % world_size]
        swap(leaving, parts[(rank - 1 - step) % world_size], right, left)
    return parts
"""

_GATHER_IN_ORDER_OF_ARRIVAL = """\
def all_gather(chunk, lengths):
    rank, world_size, right, left = places()
    parts = [chunk.clone()]
    for step in range(world_size - 1):
        coming = chunk.new_empty(lengths[(rank + 1 + step) % world_size])
        parts.append(swap(parts[-1], coming, left, right))
    return parts
"""

_GATHER_ONE_BUFFER = """\
def all_gather(chunk, lengths):
    rank, world_size, right, left = places()
    room = chunk.new_empty(max(lengths))
    parts = [room[:n] for n in lengths]
    passing = chunk
    for step in range(world_size - 1):
        c = (rank + 1 + step) % world_size
        passing = swap(passing.clone(), parts[c], left, right)
    parts[rank] = chunk.clone()
    return parts
"""

_GATHER_DIRECT = """\
def all_gather(chunk, lengths):
    rank, world_size, right, left = places()
    parts = [chunk.new_empty(n) for n in lengths]
    parts[rank].copy_(chunk)
    for far in range(1, world_size):
        to, come = (rank + far) % world_size, (rank - far) % world_size
        swap(chunk, parts[come], to, come)
    return parts
"""

_GATHER_TUPLE = """\
def all_gather(chunk, lengths):
    rank, world_size, right, left = places()
    parts = {rank: chunk.clone()}
    for step in range(1, world_size):
        c = (rank + step) % world_size
        parts[c] = torch.empty(lengths[c], dtype=chunk.dtype, device=chunk.device)
        swap(parts[(c - 1) % world_size], parts[c], left, right)
    return tuple(parts[c] for c in range(world_size))
"""

_GATHER_FILLED_UP = """\
def all_gather(chunk, lengths):
    rank, world_size, right, left = places()
    parts = [chunk.new_zeros(max(lengths)) for _ in lengths]
    parts[rank][: len(chunk)] = chunk
    for step in range(world_size - 1):
        leaving = parts[(rank + step) % world_size]
        swap(leaving, parts[(rank + 1 + step) % world_size], left, right)
    return [part[:n] for part, n in zip(parts, lengths)]
"""


def _gather_in(dtype):
    return HEAD + changed(
        _GATHER,
        ("[chunk.new_empty(n) for", f"[torch.empty(n, dtype={dtype}) for"),
        ("return parts", "return [part.to(chunk.dtype, copy=True) for part in parts]"),
    )


_ROWS = [
    (
        "takes a step too few",
        "values",
        HEAD
        + changed(_GATHER, ("new_empty", "new_zeros"), ("world_size - 1):", "world_size - 2):")),
    ),
    (
        "passes on what may not have come, and waits at the end",
        "early",
        waiting_at_the_end(_GATHER),
    ),
    ("fills up to the longest chunk", "too-long", HEAD + _GATHER_FILLED_UP),
    ("sends float64", "sent-dtype", _gather_in("torch.float64")),
    (
        "empties the caller's list",
        "input-changed",
        HEAD + changed(_GATHER, ("return parts", "lengths.clear()\n    return parts")),
    ),
    (
        "keeps its tensors for the next call",
        "kept",
        CACHING
        + HEAD
        + changed(
            _GATHER,
            (
                "[chunk.new_empty(n) for n in lengths]",
                "[_like(chunk.new_empty(n), c) for c, n in enumerate(lengths)]",
            ),
        ),
    ),
    (
        "cuts one tensor into places for all",
        None,
        HEAD
        + changed(
            _GATHER,
            (
                "[chunk.new_empty(n) for n in lengths]",
                "list(chunk.new_empty(sum(lengths)).split(lengths))",
            ),
        ),
    ),
    ("keeps the order of arrival", "order", HEAD + _GATHER_IN_ORDER_OF_ARRIVAL),
    (
        "returns one tensor",
        "no-list",
        HEAD + changed(_GATHER, ("return parts", "return torch.cat(parts)")),
    ),
    (
        "sends its own chunk in every step",
        "own-again",
        HEAD + changed(_GATHER, ("parts[(rank + step) % world_size]", "chunk")),
    ),
    ("receives all chunks into one buffer", "one-buffer", HEAD + _GATHER_ONE_BUFFER),
    (
        "leaves its own place empty",
        "own-missing",
        HEAD
        + changed(
            _GATHER,
            ("    parts[rank].copy_(chunk)\n", "    parts[rank].zero_()\n"),
            (
                "parts[(rank + step) % world_size]",
                "chunk if step == 0 else parts[(rank + step) % world_size]",
            ),
        ),
    ),
    (
        "makes every part as long as its own",
        "died",
        HEAD
        + changed(
            _GATHER,
            ("chunk.new_empty(n) for n in lengths", "torch.empty_like(chunk) for _ in lengths"),
        ),
    ),
    (
        "puts the argument itself in the list",
        "view",
        HEAD + changed(_GATHER, ("parts[rank].copy_(chunk)", "parts[rank] = chunk")),
    ),
    ("sends its chunk straight to each rank", "not-ring", HEAD + _GATHER_DIRECT),
    ("waits in send before it receives", "deadlock", changed(HEAD, (SWAP, SEND_FIRST)) + _GATHER),
    ("takes turns, from rank 0 on", "turns", changed(HEAD, (SWAP, IN_TURN)) + _GATHER),
    (
        "goes once round completely, so that its own chunk comes home",
        "cost",
        HEAD
        + changed(_GATHER, ("range(world_size - 1)", "range(world_size if world_size > 1 else 0)")),
    ),
    (
        "calls torch's all_gather",
        "forbidden",
        HEAD
        + """\
def all_gather(chunk, lengths):
    parts = [chunk.new_empty(n) for n in lengths]
    dist.all_gather(parts, chunk)
    return parts
""",
    ),
    ("turns to the right, as the lesson's ring", "to-the-right", HEAD + _GATHER_OF_THE_LESSON),
    ("makes its tensors one by one, and returns a tuple", None, HEAD + _GATHER_TUPLE),
    ("lets even ranks send first", None, changed(HEAD, (SWAP, EVEN_FIRST)) + _GATHER),
]

ANSWERS = [Answer("03.2", *row) for row in _ROWS]
