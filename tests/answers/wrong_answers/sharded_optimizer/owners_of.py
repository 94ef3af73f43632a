"""
Answers to task 13.1.
"""

from bank import Answer

from wrong_answers.sharded_optimizer.sources import OWNERS, altered

ANSWERS = [
    Answer(
        "13.1",
        "deals them out in turn",
        "in-turn",
        """\
def owners_of(sizes, world_size):
    return [i % world_size for i in range(len(sizes))]
""",
    ),
    altered(
        "13.1",
        "takes them as they come",
        "unsorted",
        ("sorted(", "list("),
        (", key=lambda i: -sizes[i]", ""),
    ),
    altered("13.1", "takes the smallest first", "smallest-first", ("-sizes[i]", "sizes[i]")),
    altered(
        "13.1",
        "leaves them in the sorted order",
        "lost-places",
        ("for i in order:", "for i, size in enumerate(sorted(sizes, reverse=True)):"),
        ("load + sizes[i]", "load + size"),
    ),
    altered(
        "13.1",
        "returns what each rank owns",
        "no-owners",
        (
            "    return owners",
            "    return [[i for i, o in enumerate(owners) if o == r] for r in range(world_size)]",
        ),
    ),
    altered(
        "13.1",
        "remembers how full ranks were",
        "kept",
        (
            "    carts = [(0, rank) for rank in range(world_size)]",
            "    empty = [(0, rank) for rank in range(world_size)]\n"
            "    carts = CARTS.setdefault((len(sizes), world_size), empty)",
        ),
        ("import heapq", "import heapq\nCARTS = {}"),
    ),
    altered(
        "13.1",
        "begins with its own rank",
        "differ",
        ("import heapq", "import heapq\nimport torch.distributed as dist"),
        ("    return owners", "    return [(o + dist.get_rank()) % world_size for o in owners]"),
    ),
    altered(
        "13.1",
        "asks how many ranks run",
        "asked",
        ("import heapq", "import heapq\nimport torch.distributed as dist"),
        ("    carts", "    world_size = dist.get_world_size()\n    carts"),
    ),
    altered(
        "13.1",
        "looks at the largest of none",
        "raised",
        ("    carts", "    largest = max(sizes)\n    carts"),
    ),
    altered(
        "13.1",
        "sorts what it was given",
        "input-changed",
        ("    carts", "    sizes.sort(reverse=True)\n    carts"),
    ),
    altered(
        "13.1",
        "sends the list of rank 0",
        "forbidden",
        ("import heapq", "import heapq\nimport torch\nimport torch.distributed as dist"),
        (
            "    return owners",
            "    owners = torch.tensor(owners)\n"
            "    dist.broadcast(owners, 0)\n    return owners.tolist()",
        ),
    ),
    altered(
        "13.1",
        "takes equals in the order of a set of names",
        "own-order",
        (
            "    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])\n",
            "    names = {f'p{i}' for i in range(len(sizes))}\n"
            "    order = sorted((int(name[1:]) for name in names), key=lambda i: -sizes[i])\n",
        ),
    ),
    altered(
        "13.1",
        "goes by a set of names whose order does no harm",
        None,
        (
            "    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])\n",
            "    names = set(map(str, range(len(sizes))))\n"
            "    order = sorted(map(int, names), key=lambda i: (-sizes[i], i))\n",
        ),
    ),
    Answer(
        "13.1",
        "gives away as long as it helps",
        None,
        """\
def owners_of(sizes, world_size):
    owners = [0] * len(sizes)
    while True:
        loads = [sum(s for s, o in zip(sizes, owners) if o == r) for r in range(world_size)]
        low = min(range(world_size), key=loads.__getitem__)
        for i, size in enumerate(sizes):
            if loads[low] + size < loads[owners[i]]:
                owners[i] = low
                break
        else:
            return tuple(owners)
""",
    ),
    altered(
        "13.1",
        "returns numbers of NumPy's",
        None,
        ("import heapq", "import heapq\nimport numpy as np"),
        ("    return owners", "    return list(np.array(owners, dtype=np.int64))"),
    ),
    Answer(
        "13.1",
        "returns a tensor",
        None,
        "import torch\n" + OWNERS.replace("    return owners", "    return torch.tensor(owners)"),
    ),
    Answer(
        "13.1",
        "moves parameters to emptier ranks, in one pass",
        "uneven",
        """\
def owners_of(sizes, world_size):
    owners = [i % world_size for i in range(len(sizes))]
    loads = [sum(s for s, o in zip(sizes, owners) if o == r) for r in range(world_size)]
    for i, size in enumerate(sizes):
        low = min(range(world_size), key=loads.__getitem__)
        if loads[low] + size < loads[owners[i]]:
            loads[owners[i]] -= size
            loads[low] += size
            owners[i] = low
    return owners
""",
    ),
]
