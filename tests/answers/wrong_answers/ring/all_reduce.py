"""
Answers to task 03.3.
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
)

# fmt: on
_REDUCE = """\
def all_reduce(tensor):
    rank, world_size, right, left = places()
    flat = tensor.flatten()
    chunks = [chunk.clone() for chunk in flat.tensor_split(world_size)]
    for step in range(world_size - 1):
        growing = chunks[(rank - 2 - step) % world_size]
        leaving = chunks[(rank - 1 - step) % world_size]
        growing += swap(leaving, torch.empty_like(growing), right, left)
    for step in range(world_size - 1):
        leaving = chunks[(rank - step) % world_size]
        swap(leaving, chunks[(rank - 1 - step) % world_size], right, left)
    return torch.cat(chunks).view(tensor.shape)
"""

_REDUCE_WHOLE = """\
def all_reduce(tensor):
    rank, world_size, right, left = places()
    passing = tensor.contiguous()
    total = passing.clone()
    for step in range(world_size - 1):
        passing = swap(passing, torch.empty_like(total), right, left)
        total += passing
    return total
"""

_REDUCE_HUB = """\
def all_reduce(tensor):
    rank, world_size, right, left = places()
    total = tensor.clone(memory_format=torch.contiguous_format)
    for chunk in total.view(-1).tensor_split(world_size):
        for other in range(1, world_size):
            if rank == 0:
                arrived = torch.empty_like(chunk)
                dist.recv(arrived, src=other)
                chunk += arrived
            elif rank == other:
                dist.send(chunk, dst=0)
        for other in range(1, world_size):
            if rank == 0:
                dist.send(chunk, dst=other)
            elif rank == other:
                dist.recv(chunk, src=0)
    return total
"""

_REDUCE_PADDED = """\
def all_reduce(tensor):
    rank, world_size, right, left = places()
    length = -(-tensor.numel() // world_size)
    table = tensor.new_zeros(world_size * length)
    table[: tensor.numel()] = tensor.reshape(-1)
    table = table.view(world_size, length)
    for step in range(2 * (world_size - 1)):
        arrived = swap(
            table[(rank - step) % world_size], tensor.new_empty(length), right, left
        )
        c = (rank - 1 - step) % world_size
        table[c] = table[c] + arrived if step < world_size - 1 else arrived
    return table.view(-1)[: tensor.numel()].view(tensor.shape)
"""

_GROWS = "growing += swap(leaving, torch.empty_like(growing), right, left)"

_ITS_RESULT = "torch.cat(chunks).view(tensor.shape)"

_IN_A_CLONE = (
    ("flat = tensor.flatten()", "total = tensor.clone()"),
    ("[chunk.clone() for chunk in flat.tensor_split(world_size)]",
     "total.flatten().tensor_split(world_size)"),
    (_ITS_RESULT, "total"),
)  # fmt: skip


def _reduce_in(dtype):
    return HEAD + changed(
        _REDUCE,
        ("tensor.flatten()", f"tensor.flatten().to({dtype})"),
        (_ITS_RESULT, f"{_ITS_RESULT}.to(tensor.dtype)"),
    )


def _reduce_if_empty(line):
    return HEAD + changed(
        _REDUCE, ("    flat = ", f"    if not tensor.numel():\n        {line}\n    flat = ")
    )


_ROWS = [
    (
        "adds into a clone made flat, and returns the clone",
        "memory",
        HEAD + changed(_REDUCE, *_IN_A_CLONE),
    ),
    (
        "passes on what may not have come, and waits at the end of each half",
        "early",
        HEAD
        + changed(
            _REDUCE,
            (
                "        swap(leaving, chunks[(rank - 1 - step) % world_size], right, left)\n",
                "        arriving = chunks[(rank - 1 - step) % world_size]\n"
                "        works.append(dist.irecv(arriving, src=left))\n"
                "        dist.send(leaving, dst=right)\n",
            ),
            ("    flat =", "    works = []\n    flat ="),
            ("    return", "    for work in works:\n        work.wait()\n    return"),
        ),
    ),
    (
        "adds into a clone that lies in one piece",
        None,
        HEAD
        + changed(
            _REDUCE,
            *_IN_A_CLONE,
            ("tensor.clone()", "tensor.clone(memory_format=torch.contiguous_format)"),
        ),
    ),
    (
        "adds with torch.stack and sum",
        "died",
        HEAD
        + changed(
            _REDUCE,
            (
                _GROWS,
                "arrived = swap(leaving, torch.empty_like(growing), right, left)\n"
                "        both = torch.stack([growing, arrived])\n"
                "        chunks[(rank - 2 - step) % world_size] = both.sum(0)",
            ),
        ),
    ),
    (
        "keeps its sum for the next call",
        "kept",
        CACHING + HEAD + changed(_REDUCE, (_ITS_RESULT, f"_like(tensor).copy_({_ITS_RESULT})")),
    ),
    ("adds in float32", "sent-dtype", _reduce_in("torch.float32")),
    ("sends nothing if the tensor is empty", None, _reduce_if_empty("return tensor.clone()")),
    ("passes the whole tensor round and adds", "too-long", HEAD + _REDUCE_WHOLE),
    ("waits in send before it receives", "deadlock", changed(HEAD, (SWAP, SEND_FIRST)) + _REDUCE),
    ("takes turns, from rank 0 on", "turns", changed(HEAD, (SWAP, IN_TURN)) + _REDUCE),
    ("sends a chunk in two messages", "cost", changed(HEAD, (SWAP, IN_PIECES)) + _REDUCE),
    ("sends each chunk over a hub", "not-ring", HEAD + _REDUCE_HUB),
    (
        "divides by the number of ranks",
        "values",
        HEAD + changed(_REDUCE, ("torch.cat(chunks)", "(torch.cat(chunks) / world_size)")),
    ),
    (
        "leaves out what is left over when the length is divided",
        "tail",
        HEAD
        + changed(
            _REDUCE,
            (
                "flat.tensor_split(world_size)]",
                "flat[: len(flat) // world_size * world_size].chunk(world_size)]",
            ),
            (
                "torch.cat(chunks)",
                "torch.cat([*chunks, flat[len(flat) // world_size * world_size :]])",
            ),
        ),
    ),
    (
        "stops after the reduce-scatter",
        "half-done",
        HEAD
        + changed(
            _REDUCE,
            (
                "        swap(leaving, chunks[(rank - 1 - step) % world_size], right, left)\n",
                "        pass\n",
            ),
        ),
    ),
    (
        "sends finished chunks as bfloat16, to save bytes",
        "bits",
        HEAD
        + changed(
            _REDUCE,
            (
                "        swap(leaving, chunks[(rank - 1 - step) % world_size], right, left)\n",
                "        arriving = chunks[(rank - 1 - step) % world_size]\n"
                "        half = torch.empty_like(arriving, dtype=torch.bfloat16)\n"
                "        arriving.copy_(swap(leaving.bfloat16(), half, right, left))\n",
            ),
        ),
    ),
    (
        "cuts by chunk, which may make fewer",
        "few-chunks",
        HEAD + changed(_REDUCE, ("flat.tensor_split(world_size)]", "flat.chunk(world_size)]")),
    ),
    (
        "wants a tensor that lies in one piece",
        "not-contiguous",
        HEAD + changed(_REDUCE, ("tensor.flatten()", "tensor.view(-1)")),
    ),
    ("returns it flat", "shape", HEAD + changed(_REDUCE, (".view(tensor.shape)", ""))),
    (
        "adds into views of its argument",
        "input-changed",
        HEAD
        + changed(
            _REDUCE,
            (
                "[chunk.clone() for chunk in flat.tensor_split(world_size)]",
                "flat.tensor_split(world_size)",
            ),
        ),
    ),
    (
        "calls torch's all_reduce",
        "forbidden",
        HEAD
        + """\
def all_reduce(tensor):
    total = tensor.clone()
    dist.all_reduce(total)
    return total
""",
    ),
    ("fills up with zeros, and finishes chunks one rank before home", None, HEAD + _REDUCE_PADDED),
    ("lets even ranks send first", None, changed(HEAD, (SWAP, EVEN_FIRST)) + _REDUCE),
]

ANSWERS = [Answer("03.3", *row) for row in _ROWS]
