"""
Answers to task 04.1.
"""

from bank import Answer, changed

SHARDS = """\
import torch
import torch.distributed as dist


def shard_indices(num_samples, seed, epoch):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(num_samples, generator=generator).tolist()
    length = -(-num_samples // world_size)
    padded = order * world_size
    return padded[rank : length * world_size : world_size]
"""

GENERATOR = "torch.Generator().manual_seed(seed + epoch)"

_ROUNDED_UP = "-(-num_samples // world_size)"

_PADDED = "padded = order * world_size"

TAKEN = "return padded[rank : length * world_size : world_size]"

_SHARDS_BY_BLOCKS = """\
import random
import torch.distributed as dist


def shard_indices(n, seed, epoch):
    dice = random.Random(f"{seed}/{epoch}")
    order = dice.sample(range(n), n)
    length = (n + dist.get_world_size() - 1) // dist.get_world_size()
    while len(order) < length * dist.get_world_size():
        order.append(dice.randrange(n))
    return tuple(order[length * dist.get_rank() :][:length])
"""

_SHARDS_OF_TORCH = """\
import torch
from torch.utils.data import DistributedSampler


def shard_indices(num_samples, seed, epoch):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        order = torch.randperm(num_samples)
    sampler = DistributedSampler(order, seed=seed)
    sampler.set_epoch(epoch)
    return [int(order[place]) for place in sampler]
"""

_OWN_PART_SHUFFLED = """\
import random
import torch.distributed as dist


def shard_indices(num_samples, seed, epoch):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    length = -(-num_samples // world_size)
    mine = (list(range(num_samples)) * world_size)[rank::world_size][:length]
    random.Random(seed + epoch).shuffle(mine)
    return mine
"""


def _shards(lines):
    return f"""\
import hashlib, random, torch
import torch.distributed as dist


def shard_indices(n, seed, epoch):
    r, w = dist.get_rank(), dist.get_world_size()
    length = -(-n // w)
{lines}"""


def _order(line):
    return _shards(f"    order = {line}\n    return (order * w)[r * length :][:length]\n")


_BY_SEED = "torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()"


def _keeps_orders(key):
    """
    Return an answer that stores each order under a key, and uses the stored one.
    """
    return "KNOWN = {}\n" + changed(
        SHARDS,
        (
            "    order = torch",
            f"    key = {key}\n    if key not in KNOWN:\n        KNOWN[key] = torch",
        ),
        ("    length", "    order = KNOWN[key]\n    length"),
    )


_SHARDS_BY_STORE = _shards("""\
    order, key = list(range(n)), f"{n} {seed} {epoch}"
    random.Random(key).shuffle(order)
    store = dist.distributed_c10d._get_default_store()
    if r == 0:
        store.set(key, " ".join(map(str, order)))
    order = list(map(int, store.get(key).split()))
    return (order * w)[r * length :][:length]
""")

_ROWS = [
    ("unusual: blocks, Python's dice, padded with what is drawn again", None, _SHARDS_BY_BLOCKS),
    ("unusual: torch's sampler over an order of its own", None, _SHARDS_OF_TORCH),
    (
        "numbers samples in 8 bits",
        "overlap",
        changed(SHARDS, ("generator=generator).tolist", "generator=generator).byte().tolist")),
    ),
    (
        "begins anew after 16 epochs",
        "no-epoch",
        changed(SHARDS, ("seed + epoch)", "16 * seed + epoch % 16)")),
    ),
    (
        "takes 8 bits of the seed",
        "no-seed",
        changed(SHARDS, ("seed + epoch)", "seed % 256 * 1000 + epoch)")),
    ),
    (
        "unusual: shuffles once more for each epoch",
        None,
        _shards("""\
    dice, order = random.Random(seed), list(range(n))
    for _ in range(epoch + 1):
        dice.shuffle(order)
    return (order * w)[r * length :][:length]
"""),
    ),
    ("gives all samples to every rank", "all-samples", changed(SHARDS, (TAKEN, "return order"))),
    (
        "shuffles by a generator without a seed",
        "unseeded",
        changed(SHARDS, ("num_samples, generator=generator", "num_samples")),
    ),
    (
        "seeds the global generator",
        "global-state",
        changed(
            SHARDS,
            (GENERATOR, "torch.manual_seed(seed + epoch)"),
            ("num_samples, generator=generator", "num_samples"),
        ),
    ),
    ("does not pad", "unequal", changed(SHARDS, (TAKEN, "return order[rank::world_size]"))),
    ("drops the tail", "dropped", changed(SHARDS, (_ROUNDED_UP, "num_samples // world_size"))),
    (
        "pads with a sample that is not there",
        "no-sample",
        changed(SHARDS, (_PADDED, "padded = order + [num_samples] * world_size")),
    ),
    (
        "repeats the order once at most",
        "fewer",
        changed(SHARDS, (_PADDED, "padded = order + order[: length * world_size - num_samples]")),
    ),
    (
        "fills a table that needs the padding to be there",
        "raised",
        changed(
            SHARDS,
            (_PADDED, "padded = order + order[: length * world_size - num_samples]"),
            (TAKEN, "return torch.tensor(padded).view(length, world_size)[:, rank].tolist()"),
        ),
    ),
    (
        "rounds up one too far",
        "too-long",
        changed(SHARDS, (_ROUNDED_UP, "num_samples // world_size + 2")),
    ),
    (
        "does not shuffle",
        "no-shuffle",
        changed(
            SHARDS,
            ("torch.randperm(num_samples, generator=generator)", "torch.arange(num_samples)"),
        ),
    ),
    ("shuffles only its own part", "own-share", _OWN_PART_SHUFFLED),
    (
        "sends the order of rank 0 to all",
        "forbidden",
        changed(
            SHARDS,
            ("num_samples, generator=generator).tolist()", "num_samples)"),
            (
                "    length",
                "    dist.broadcast(order, src=0)\n    order = order.tolist()\n    length",
            ),
        ),
    ),
    (
        "returns tensors",
        "no-list",
        changed(SHARDS, (".tolist()", ""), (_PADDED, "padded = list(order) * world_size")),
    ),
    ("prints its share", "nothing", changed(SHARDS, (TAKEN, f"print({TAKEN[7:]})"))),
    (
        "unusual: sorts by a digest",
        None,
        _order(
            "sorted(range(n), key=lambda i: hashlib.md5(f'{seed} {epoch} {i}'.encode()).digest())"
        ),
    ),
    (
        "unusual: seeds with hash() of two numbers, which is the same everywhere",
        None,
        changed(SHARDS, ("seed + epoch)", "hash((seed, epoch)) % 2**60)")),
    ),
    (
        "unusual: keeps orders by all three numbers",
        None,
        _keeps_orders("num_samples, seed, epoch"),
    ),
    ("keeps the first order for ever", "kept", _keeps_orders("0")),
    (
        "sorts each share",
        "sorted",
        changed(SHARDS, ("return padded", "return sorted(padded"), ("world_size]", "world_size])")),
    ),
    (
        "seeds with hash() of a text",
        "own-order",
        changed(SHARDS, ("seed + epoch)", 'hash(f"{seed}-{epoch}"))')),
    ),
    (
        "begins a shuffled order elsewhere in each epoch",
        "turned",
        _order(f"({_BY_SEED} * 2)[epoch % n :][:n]"),
    ),
    ("counts on four ranks", "other-size", changed(SHARDS, ("dist.get_world_size()", "4"))),
    ("tells the order through the store", "store", _SHARDS_BY_STORE),
]

ANSWERS = [Answer("04.1", *row) for row in _ROWS]
