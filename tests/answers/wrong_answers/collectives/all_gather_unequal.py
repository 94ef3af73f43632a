"""
Answers to task 02.2.
"""

from bank import Answer, changed

from wrong_answers.collectives.sources import CACHING, IMPORTS

_GATHER = (
    IMPORTS
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

_ROWS = [
    (
        "02.2",
        "sends lengths in a byte",
        "length-dtype",
        changed(
            _GATHER,
            ("[len(tensor)], ", "[len(tensor) % 256], dtype=torch.uint8, "),
            ("= tensor\n", "= tensor[:longest]\n"),
        ),
    ),
    (
        "02.2",
        "sends a length and how long a number is",
        "wide-length",
        changed(
            _GATHER,
            ("[len(tensor)], ", "[len(tensor), tensor.element_size()], "),
            ("int(n)", "int(n[0])"),
        ),
    ),
    (
        "02.2",
        "makes the second call only if it has numbers",
        "died",
        changed(
            _GATHER,
            (
                "    dist.all_gather(parts, padded)",
                "    if len(tensor):\n        dist.all_gather(parts, padded)",
            ),
        ),
    ),
    (
        "02.2",
        "sends bytes",
        None,
        f"""{IMPORTS}
def all_gather_unequal(tensor):
    def gather(one):
        everyone = [torch.empty_like(one) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, one, async_op=True).wait()
        return everyone

    raw = tensor.view(torch.uint8) if len(tensor) else torch.empty(0, dtype=torch.uint8)
    sizes = [int(size) for size in gather(torch.tensor(raw.numel()))]
    mine = torch.empty(max(sizes), dtype=torch.uint8)
    mine[: len(raw)] = raw
    return [part[:n].clone().view(tensor.dtype) for part, n in zip(gather(mine), sizes)]
""",
    ),
    (
        "02.2",
        "fills up in float64",
        "wide-dtype",
        changed(
            changed(_GATHER, ("tensor.new_zeros(longest)", "torch.zeros(longest).double()")),
            ("part[: int(n)]", "part[: int(n)].to(tensor.dtype)"),
        ),
    ),
    (
        "02.2",
        "sends numbers as bfloat16",
        "digits",
        changed(
            changed(_GATHER, ("tensor.new_zeros(longest)", "torch.zeros(longest).bfloat16()")),
            ("part[: int(n)]", "part[: int(n)].to(tensor.dtype)"),
        ),
    ),
    (
        "02.2",
        "returns the last rank's first",
        "order",
        changed(_GATHER, ("zip(parts, lengths)", "list(zip(parts, lengths))[::-1]")),
    ),
    (
        "02.2",
        "leaves out what is empty",
        "no-list",
        changed(_GATHER, ("zip(parts, lengths)]", "zip(parts, lengths) if n]")),
    ),
    (
        "02.2",
        "knows nothing of empty tensors",
        "raised",
        changed(_GATHER, ("    length =", "    tensor[0]\n    length =")),
    ),
    (
        "02.2",
        "puts the argument itself in the list",
        "view",
        changed(_GATHER, ("    return [", "    parts[dist.get_rank()] = tensor\n    return [")),
    ),
    (
        "02.2",
        "keeps its tensors for the next call",
        "kept",
        CACHING + changed(_GATHER, ("torch.empty_like(padded) for _", "_like(padded, r) for r")),
    ),
    (
        "02.2",
        "puts the length before the numbers, and fills up to 1,000",
        "no-lengths",
        IMPORTS
        + """\
def all_gather_unequal(tensor):
    room = tensor.new_zeros(1000)
    room[0] = len(tensor)
    room[1 : len(tensor) + 1] = tensor
    rows = [torch.empty_like(room) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, room)
    return [row[1 : int(row[0]) + 1].clone() for row in rows]
""",
    ),
    (
        "02.2",
        "sends the tensors' bytes",
        None,
        IMPORTS
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
""",
    ),
    (
        "02.2",
        "gathers nothing where all are empty",
        None,
        changed(
            _GATHER,
            (
                "    padded = ",
                """\
    if not longest:
        return [tensor.clone() for _ in lengths]
    padded = """,
            ),
        ),
    ),
]

ANSWERS = [
    *(Answer(*row) for row in _ROWS),
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
        "cuts where the zeros begin",
        "zeros",
        IMPORTS
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
        IMPORTS
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
        "broadcasts from each rank in turn",
        "forbidden",
        IMPORTS
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
        IMPORTS
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
]
