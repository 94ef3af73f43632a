"""
Answers to exercise 04.
"""

from bank import Answer, changed

# ---- 04.1 shard indices ----

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

_SHARD_ANSWERS = [
    ("unusual: blocks, Python's dice, padded with what is drawn again", None, _SHARDS_BY_BLOCKS),
    ("unusual: torch's sampler over an order of its own", None, _SHARDS_OF_TORCH),
    ("gives all samples to every rank", "all-samples", changed(SHARDS, (TAKEN, "return order"))),
    (
        "shuffles by a generator without a seed",
        "unseeded",
        changed(SHARDS, ("num_samples, generator=generator", "num_samples")),
    ),
    (
        "puts the rank into the seed",
        "overlap",
        changed(SHARDS, ("seed + epoch)", "seed + epoch + rank)")),
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
    ("leaves the epoch out", "no-epoch", changed(SHARDS, ("seed + epoch", "seed"))),
    ("leaves the seed out", "no-seed", changed(SHARDS, ("seed + epoch", "epoch"))),
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
]

# ---- 04.2 exact accuracy ----

ACCURACY = """\
import torch
import torch.distributed as dist


def exact_accuracy(predict, inputs, labels):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine, labels_of_mine = inputs[rank::world_size], labels[rank::world_size]
    num_right = (predict(mine) == labels_of_mine).sum()
    dist.all_reduce(num_right)
    return num_right.item() / len(inputs)
"""
_SLICES = "inputs[rank::world_size], labels[rank::world_size]"
COUNT = "num_right = (predict(mine) == labels_of_mine).sum()"
REDUCE = "dist.all_reduce(num_right)"
_OWN_MEAN = ("labels_of_mine).sum()", "labels_of_mine).double().mean()")

_ACCURACY_OF_BLOCKS = """\
import torch
import torch.distributed as dist


def exact_accuracy(predict, inputs, labels):  # blocks, one by one, in float32, both counts gathered
    rank, world_size = dist.get_rank(), dist.get_world_size()
    begin, end = (len(inputs) * r // world_size for r in (rank, rank + 1))
    right = [bool(predict(inputs[i : i + 1]) == labels[i]) for i in range(begin, end)]
    counts = torch.tensor([sum(right), len(right)], dtype=torch.float32, device=inputs.device)
    of_all = torch.empty(world_size, 2, device=inputs.device)
    dist.all_gather_into_tensor(of_all, counts[None])
    num_right, num_seen = of_all.sum(0)
    return float(num_right / num_seen)
"""

_ACCURACY_BY_SAMPLER = """\
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler


def exact_accuracy(predict, inputs, labels):
    sampler = DistributedSampler(range(len(inputs)), shuffle=False)
    counts = torch.zeros(2, device=inputs.device)
    for batch in DataLoader(range(len(inputs)), batch_size=4, sampler=sampler):
        counts[0] += (predict(inputs[batch]) == labels[batch]).sum()
        counts[1] += len(batch)
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()
"""

_ACCURACY_OF_RANK_0 = """\
import torch
import torch.distributed as dist


def exact_accuracy(predict, inputs, labels):
    accuracy = torch.zeros((), dtype=torch.float64, device=inputs.device)
    if dist.get_rank() == 0:
        accuracy += (predict(inputs) == labels).double().mean()
    dist.broadcast(accuracy, src=0)
    return accuracy.item()
"""

_ACCURACY_ANSWERS = [
    ("unusual: blocks, one by one, float32 counts", None, _ACCURACY_OF_BLOCKS),
    (
        "unusual: adds up shares of the whole, in float64",
        None,
        changed(
            ACCURACY,
            ("labels_of_mine).sum()", "labels_of_mine).double().sum() / len(inputs)"),
            (".item() / len(inputs)", ".item()"),
        ),
    ),
    (
        "averages the ranks' accuracies",
        "mean-of-means",
        changed(ACCURACY, _OWN_MEAN, ("len(inputs)", "world_size")),
    ),
    (
        "adds the ranks' accuracies up",
        "mean-of-means",
        changed(ACCURACY, _OWN_MEAN, (" / len(inputs)", "")),
    ),
    (
        "weighs the ranks' accuracies, of which one may be 0 / 0",
        "no-samples",
        changed(ACCURACY, ("labels_of_mine).sum()", "labels_of_mine).double().mean() * len(mine)")),
    ),
    ("evaluates what the sampler has padded", "padding", _ACCURACY_BY_SAMPLER),
    (
        "leaves the tail out",
        "lost",
        changed(
            ACCURACY,
            (
                _SLICES,
                "(x[rank::world_size][: len(x) // world_size] for x in (inputs, labels))",
            ),
        ),
    ),
    (
        "evaluates everything everywhere",
        "all-samples",
        changed(
            ACCURACY, (_SLICES, "inputs, labels"), ("/ len(inputs)", "/ world_size / len(inputs)")
        ),
    ),
    ("lets rank 0 do the work", "not-shared", _ACCURACY_OF_RANK_0),
    (
        "divides by its own samples",
        "own-count",
        changed(ACCURACY, ("len(inputs)", "max(1, len(mine))")),
    ),
    (
        "divides by its own samples and asks nobody",
        "alone",
        changed(ACCURACY, (REDUCE, ""), ("len(inputs)", "max(1, len(mine))")),
    ),
    ("divides by all samples and asks nobody", "alone", changed(ACCURACY, (REDUCE, ""))),
    (
        "reduces to rank 0 only",
        "not-everywhere",
        changed(ACCURACY, (REDUCE, "dist.reduce(num_right, dst=0)")),
    ),
    (
        "returns the count",
        "undivided",
        changed(ACCURACY, ("num_right.item() / len(inputs)", "float(num_right)")),
    ),
    (
        "counts in the dtype of the inputs",
        "rounded",
        changed(ACCURACY, ("labels_of_mine).sum()", "labels_of_mine).to(inputs.dtype).sum()")),
    ),
    (
        "lets a rank without samples go",
        "deadlock",
        changed(ACCURACY, (COUNT, f"if len(mine) == 0:\n        return 0.0\n    {COUNT}")),
    ),
    (
        "gathers every answer, as an object",
        "cost",
        changed(
            ACCURACY,
            (".sum()", ".tolist()"),
            (REDUCE, "parts = [None] * world_size\n    dist.all_gather_object(parts, num_right)"),
            ("num_right.item()", "sum(map(sum, parts))"),
        ),
    ),
    (
        "adds up right ones and samples one after the other",
        "cost",
        changed(
            ACCURACY,
            (
                REDUCE,
                f"{REDUCE}\n    num_seen = torch.tensor(len(mine), device=inputs.device)\n"
                "    dist.all_reduce(num_seen)",
            ),
            ("len(inputs)", "num_seen.item()"),
        ),
    ),
    ("returns a tensor", "no-float", changed(ACCURACY, (".item()", ""))),
    ("prints the accuracy", "nothing", changed(ACCURACY, ("return ", "accuracy = "))),
]

# ---- 04.3 a sampler that resumes in the middle of an epoch ----

RESUME = """\
from torch.utils.data import DistributedSampler


class ResumableSampler(DistributedSampler):
    def __init__(self, dataset, seed):
        super().__init__(dataset, seed=seed)
        self.num_given = 0

    def set_epoch(self, epoch):
        if epoch != self.epoch:
            self.num_given = 0
        super().set_epoch(epoch)

    def __iter__(self):
        mine = list(super().__iter__())
        for index in mine[self.num_given :]:
            self.num_given += 1
            yield index

    def state_dict(self):
        return {"epoch": self.epoch, "num_given": self.num_given}

    def load_state_dict(self, state):
        self.epoch, self.num_given = state["epoch"], state["num_given"]
"""
IF_OTHER = """\
        if epoch != self.epoch:
            self.num_given = 0
"""
GIVE = """\
            self.num_given += 1
            yield index
"""
STATE = '{"epoch": self.epoch, "num_given": self.num_given}'
LOAD = 'self.epoch, self.num_given = state["epoch"], state["num_given"]'

_RESUME_BY_PLACES = """\
import random
import torch.distributed as dist


class ResumableSampler:  # its own iterator and order; counts the places of all ranks together
    def __init__(self, dataset, seed):
        self.size, self.seed, self.epoch, self.place = len(dataset), seed, 0, 0

    def set_epoch(self, epoch):
        self.epoch, self.place = epoch, self.place if epoch == self.epoch else 0

    def __iter__(self):
        dice = random.Random(f"{self.seed} {self.epoch}")
        order = dice.sample(range(self.size), self.size)
        self.order = order + order[: -self.size % dist.get_world_size()]
        return self

    def __next__(self):
        if self.place >= len(self.order):
            raise StopIteration
        self.place += dist.get_world_size()
        return self.order[self.place - dist.get_world_size() + dist.get_rank()]

    def state_dict(self):
        return {"where": f"{self.epoch}:{self.place}"}

    def load_state_dict(self, state):
        self.epoch, self.place = map(int, state["where"].split(":"))
"""

_RESUME_BY_START = """\
import itertools
from torch.utils.data import DistributedSampler


class ResumableSampler(DistributedSampler):  # where this run began, and what it has given since
    def __init__(self, dataset, seed):
        super().__init__(dataset, seed=seed)
        self.start = self.given = 0

    def set_epoch(self, epoch):
        if epoch != self.epoch:
            self.start = self.given = 0
        self.epoch = epoch

    def __iter__(self):
        self.start, self.given = self.start + self.given, 0
        return map(self.count, itertools.islice(super().__iter__(), self.start, None))

    def count(self, index):
        self.given += 1
        return index

    def state_dict(self):
        return dict(epoch=self.epoch, start=self.start + self.given)

    def load_state_dict(self, state):
        self.epoch, self.start, self.given = state["epoch"], state["start"], 0
"""

_RESUME_ANSWERS = [
    ("unusual: its own iterator and order, places of all ranks", None, _RESUME_BY_PLACES),
    ("unusual: a start, and a count from there", None, _RESUME_BY_START),
    (
        "skips at the next pass, whichever epoch it is of",
        "short-epoch",
        changed(
            RESUME,
            (IF_OTHER, ""),
            ("self.num_given = 0\n", "self.skip = self.num_given = 0\n"),
            ("        mine =", "        self.num_given, self.skip = self.skip, 0\n        mine ="),
            ("self.epoch, self.num_given =", "self.epoch, self.skip ="),
        ),
    ),
    (
        "never ends",
        "shares",
        changed(
            RESUME,
            ("mine[self.num_given :]", "itertools.cycle(mine[self.num_given :])"),
            ("from torch", "import itertools\nfrom torch"),
        ),
    ),
    (
        "fills three of the four gaps",
        "blank",
        changed(RESUME, (LOAD, 'raise NotImplementedError("Task 04.3 is still blank")')),
    ),
    ("never begins anew", "short-epoch", changed(RESUME, (IF_OTHER, ""))),
    (
        "begins anew at every set_epoch",
        "restart",
        changed(RESUME, ("if epoch != self.epoch:", "if True:")),
    ),
    (
        "does not save the count",
        "no-count",
        changed(
            RESUME, (', "num_given": self.num_given', ""), (LOAD, 'self.epoch = state["epoch"]')
        ),
    ),
    (
        "counts after the yield",
        "one-twice",
        changed(RESUME, (GIVE, "            yield index\n            self.num_given += 1\n")),
    ),
    (
        "counts the whole list when it is made",
        "all-at-once",
        changed(
            RESUME,
            (
                "        for index in mine[",
                "        rest = mine[self.num_given :]\n"
                "        self.num_given = len(mine)\n        for index in mine[",
            ),
            ("in mine[self.num_given :]", "in rest"),
            (GIVE, "            yield index\n"),
        ),
    ),
    (
        "begins anew at the end, so that an ended epoch comes again",
        "again",
        changed(RESUME, (IF_OTHER, ""), (GIVE, f"{GIVE}        self.num_given = 0\n")),
    ),
    (
        "saves the count without the epoch",
        "no-epoch",
        changed(
            RESUME,
            ('"epoch": self.epoch, ', ""),
            (LOAD, 'self.num_given = state["num_given"]\n        self.was_loaded = True'),
            ("self.num_given = 0\n\n", "self.num_given, self.was_loaded = 0, False\n\n"),
            ("if epoch != self.epoch:", "if epoch != self.epoch and not self.was_loaded:"),
        ),
    ),
    (
        "counts from the restart",
        "relative",
        changed(
            RESUME,
            ("self.num_given = 0\n", "self.skip = self.num_given = 0\n"),
            ("        mine =", "        self.num_given = 0\n        mine ="),
            ("mine[self.num_given :]", "mine[self.skip :]"),
            (LOAD, 'self.epoch, self.skip = state["epoch"], state["num_given"]'),
        ),
    ),
    (
        "saves the samples that are left",
        "big-state",
        changed(
            RESUME,
            (STATE, '{"epoch": self.epoch, "left": list(super().__iter__())[self.num_given :]}'),
            (
                LOAD,
                "self.epoch = state['epoch']\n"
                "        self.num_given = len(self) - len(state['left'])",
            ),
        ),
    ),
    (
        "saves everything that it has",
        "big-state",
        changed(RESUME, (STATE, "dict(vars(self))"), (LOAD, "vars(self).update(state)")),
    ),
    (
        "returns the dictionary in which it counts",
        "live-state",
        changed(
            RESUME,
            (
                "        super().__init__(dataset, seed=seed)\n        self.num_given = 0\n",
                "        self.now = {}\n        super().__init__(dataset, seed=seed)\n"
                '        self.now = {"epoch": 0, "num_given": 0}\n',
            ),
            (
                IF_OTHER,
                '        if epoch != self.epoch:\n            self.now["num_given"] = 0\n'
                '        self.now["epoch"] = epoch\n',
            ),
            ("self.num_given :", 'self.now["num_given"] :'),
            ("self.num_given += 1", 'self.now["num_given"] += 1'),
            (STATE, "self.now"),
            (LOAD, 'self.now, self.epoch = state, state["epoch"]'),
        ),
    ),
    (
        "saves its rank",
        "own-state",
        changed(
            RESUME,
            (STATE, '{"epoch": self.epoch, "num_given": self.num_given, "rank": self.rank}'),
        ),
    ),
    (
        "saves the sample that comes next",
        "raised",
        changed(
            RESUME,
            (STATE, '{"epoch": self.epoch, "next": list(super().__iter__())[self.num_given]}'),
            (
                LOAD,
                'self.epoch = state["epoch"]\n'
                '        self.num_given = list(super().__iter__()).index(state["next"])',
            ),
        ),
    ),
    (
        "does not tell the sampler its epoch",
        "same-order",
        changed(
            RESUME,
            ("super().set_epoch(epoch)", "self.now = epoch"),
            ("epoch != self.epoch", 'epoch != getattr(self, "now", 0)'),
        ),
    ),
    (
        "takes the samples of all ranks",
        "shares",
        changed(RESUME, ("list(super().__iter__())", "list(range(len(self.dataset)))")),
    ),
    (
        "takes the state of rank 0",
        "forbidden",
        changed(
            RESUME,
            ("from torch", "import torch.distributed as dist\nfrom torch"),
            (
                LOAD,
                "states = [state]\n"
                "        dist.broadcast_object_list(states)\n"
                f"        state = states[0]\n        {LOAD}",
            ),
        ),
    ),
]

# ---- 04.4 balanced shares ----

SHARES = """\
import torch
import torch.distributed as dist


def balanced_shares(speed, num_samples):
    world_size = dist.get_world_size()
    parts = [torch.empty_like(speed) for _ in range(world_size)]
    dist.all_gather(parts, speed)
    speeds = [part.item() for part in parts]
    exact = [num_samples * one / sum(speeds) for one in speeds]
    shares = [int(part) for part in exact]
    neediest = sorted(range(world_size), key=lambda r: shares[r] - exact[r])
    for rank in neediest[: num_samples - sum(shares)]:
        shares[rank] += 1
    return shares
"""
_GATHER = """\
    parts = [torch.empty_like(speed) for _ in range(world_size)]
    dist.all_gather(parts, speed)
    speeds = [part.item() for part in parts]
"""
REST = """\
    neediest = sorted(range(world_size), key=lambda r: shares[r] - exact[r])
    for rank in neediest[: num_samples - sum(shares)]:
        shares[rank] += 1
"""

SHARES_BY_CUTS = """\
import torch
import torch.distributed as dist


def balanced_shares(speed, num_samples):  # an all-reduce; rounds the running sum, not the shares
    speeds = speed.new_zeros(dist.get_world_size())
    speeds[dist.get_rank()] = speed[0]
    dist.all_reduce(speeds)
    ends = speeds.cumsum(0)
    cuts = (ends / ends[-1] * num_samples).floor().long().tolist()
    return [stop - start for start, stop in zip([0, *cuts], cuts)]
"""

_SHARES_ONE_BY_ONE = """\
import torch
import torch.distributed as dist


def balanced_shares(speed, num_samples):  # float32; one sample after another to who lacks most
    speeds = torch.empty(dist.get_world_size(), device=speed.device)
    dist.all_gather_into_tensor(speeds, speed.float())
    exact = num_samples * speeds / speeds.sum()
    shares = exact.floor()
    while shares.sum() < num_samples:
        shares[(exact - shares).argmax()] += 1
    return tuple(int(share) for share in shares)
"""

_BALANCED_ANSWERS = [
    ("unusual: cuts of the running sum", None, SHARES_BY_CUTS),
    ("unusual: float32, one sample after another", None, _SHARES_ONE_BY_ONE),
    ("rounds down", "sum", changed(SHARES, (REST, ""))),
    ("rounds each share", "sum", changed(SHARES, (REST, ""), ("int(part)", "round(part)"))),
    (
        "gives the last rank what is left",
        "rest-to-one",
        changed(SHARES, (REST, "    shares[-1] += num_samples - sum(shares)\n")),
    ),
    ("shares equally", "equal", changed(SHARES, ("one / sum(speeds)", "1 / world_size"))),
    ("takes speeds for seconds", "inverted", changed(SHARES, ("part.item()", "1 / part.item()"))),
    (
        "thinks that all are as fast as it is",
        "alone",
        changed(SHARES, (_GATHER, "    speeds = [speed.item()] * world_size\n")),
    ),
    (
        "gathers on rank 0 only",
        "not-agreed",
        changed(
            SHARES,
            ("torch.empty_like(speed)", "speed.clone()"),
            (
                "dist.all_gather(parts, speed)",
                "dist.gather(speed, None if dist.get_rank() else parts)",
            ),
        ),
    ),
    (
        "rounds the speeds",
        "whole-speeds",
        changed(SHARES, ("    parts =", "    speed = speed.long()\n    parts =")),
    ),
    (
        "sorts the ranks by speed",
        "order",
        changed(
            SHARES, ("[part.item() for part in parts]", "sorted(part.item() for part in parts)")
        ),
    ),
    (
        "returns its own share",
        "no-list",
        changed(SHARES, ("return shares", "return shares[dist.get_rank()]")),
    ),
    (
        "returns shares with a fraction",
        "no-list",
        changed(SHARES, ("return shares", "return exact")),
    ),
    (
        "gathers into float32",
        "raised",
        changed(SHARES, ("torch.empty_like(speed)", "torch.empty(1, device=speed.device)")),
    ),
    ("gathers objects", "cost", changed(SHARES, ("all_gather(", "all_gather_object("))),
    (
        "adds speeds up in the argument",
        "input-changed",
        changed(
            SHARES,
            ("    exact", "    dist.all_reduce(speed)\n    exact"),
            ("sum(speeds)", "speed.item()"),
        ),
    ),
    ("prints the shares", "nothing", changed(SHARES, ("return shares", "print(shares)"))),
]

ANSWERS = [
    Answer(number, *answer)
    for number, answers in (
        ("04.1", _SHARD_ANSWERS),
        ("04.2", _ACCURACY_ANSWERS),
        ("04.3", _RESUME_ANSWERS),
        ("04.4", _BALANCED_ANSWERS),
    )
    for answer in answers
]
