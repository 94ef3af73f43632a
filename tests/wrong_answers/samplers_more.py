"""
More answers to exercise 04: orders that are hardly shuffled, counts that overflow, what a restart
must know, and ways to round.
"""

from bank import Answer, changed

from wrong_answers.samplers import (
    ACCURACY,
    COUNT,
    GENERATOR,
    IF_OTHER,
    LOAD,
    REDUCE,
    REST,
    RESUME,
    SHARDS,
    SHARES,
    SHARES_BY_CUTS,
    STATE,
    TAKEN,
)

# ---- 04.1 shard indices ----


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

_KEEPS_SHARES = f"""\
KNOWN = {{}}
{SHARDS.replace("shard_indices", "new_shard")}

def shard_indices(*arguments):
    if arguments not in KNOWN:
        KNOWN[arguments] = new_shard(*arguments)
    return list(KNOWN[arguments])
"""

_NO_SEED = "torch.Generator()"


def _keeps_orders(key):
    """
    Return an answer that keeps its orders under a key.
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

_SHARD_ANSWERS = [
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
    ("keeps an order by the number of samples", "kept", _keeps_orders("num_samples")),
    ("keeps an order by seed and epoch", "kept", _keeps_orders("seed, epoch")),
    ("keeps an order by samples and seed", "kept", _keeps_orders("num_samples, seed")),
    ("keeps an order by samples and epoch", "kept", _keeps_orders("num_samples, epoch")),
    (
        "keeps the first share for ever",
        "kept",
        _KEEPS_SHARES.replace("if arguments not in KNOWN:", "if not KNOWN:").replace(
            "KNOWN[arguments]", "KNOWN[0]"
        ),
    ),
    ("makes a generator and does not seed it", "unseeded", changed(SHARDS, (GENERATOR, _NO_SEED))),
    ("seeds with 42", "unseeded", changed(SHARDS, ("seed + epoch)", "42)"))),
    (
        "goes on with one generator",
        "unseeded",
        changed(
            SHARDS, (GENERATOR, "GENERATOR"), ("\n\n\ndef", f"\n\nGENERATOR = {_NO_SEED}\n\n\ndef")
        ),
    ),
    (
        "sorts each share",
        "sorted",
        changed(SHARDS, ("return padded", "return sorted(padded"), ("world_size]", "world_size])")),
    ),
    (
        "seeds with hash() of a text",
        "hashes",
        changed(SHARDS, ("seed + epoch)", 'hash(f"{seed}-{epoch}"))')),
    ),
    (
        "sorts by hash() of a number and a text",
        "hashes",
        _order('sorted(range(n), key=lambda i: hash((f"{seed} {epoch}", i)))'),
    ),
    (
        "swaps fixed shares from epoch to epoch",
        "own-share",
        _shards(f"""\
    mine = ({_BY_SEED} * w)[(r + epoch) % w * length :][:length]
    random.Random(epoch).shuffle(mine)
    return mine
"""),
    ),
    (
        "swaps fixed shares as they are",
        "own-share",
        _shards(f"    return ({_BY_SEED} * w)[(r + epoch) % w : length * w : w]\n"),
    ),
    (
        "begins a shuffled order elsewhere in each epoch",
        "turned",
        _order(f"({_BY_SEED} * 2)[epoch % n :][:n]"),
    ),
    (
        "begins the list elsewhere in each epoch",
        "no-shuffle",
        _order("(list(range(n)) * 2)[(seed + epoch) % n :][:n]"),
    ),
    (
        "shuffles blocks of five",
        "no-shuffle",
        _order(
            "sum(random.Random(seed + epoch).sample("
            "[list(range(n))[i : i + 5] for i in range(0, n, 5)], -(-n // 5)), [])"
        ),
    ),
    ("knows two orders", "no-epoch", changed(SHARDS, ("seed + epoch)", "2 * seed + epoch % 2)"))),
    ("multiplies seed and epoch", "no-seed", changed(SHARDS, ("seed + epoch)", "seed * epoch)"))),
    (
        "seeds the global generator, and then seeds it as it was",
        "global-state",
        changed(
            SHARDS,
            (GENERATOR, "torch.manual_seed(seed + epoch)"),
            ("num_samples, generator=generator", "num_samples"),
            ("    length", "    torch.manual_seed(torch.initial_seed())\n    length"),
        ),
    ),
    ("counts on four ranks", "other-size", changed(SHARDS, ("dist.get_world_size()", "4"))),
    ("keeps shares, whatever the number of ranks", "other-size", _KEEPS_SHARES),
    (
        "begins each block too early",
        "overlap",
        changed(SHARDS, (TAKEN, "return padded[rank * (num_samples // world_size) :][:length]")),
    ),
    ("tells the order through the store", "store", _SHARDS_BY_STORE),
]

# ---- 04.2 exact accuracy ----

_TOTAL = ("\n\n\ndef", "\n\nTOTAL = torch.zeros(1, dtype=torch.long)\n\n\ndef")


def _counted(dtype):
    return changed(ACCURACY, ("labels_of_mine).sum()", f"labels_of_mine).sum(dtype=torch.{dtype})"))


def _keeps_parts(names):
    """
    Return an answer that keeps its part of the inputs, the labels, or both.
    """
    return changed(
        ACCURACY,
        ("\n\n\ndef", "\n\nKNOWN = {}\n\n\ndef"),
        (
            f"    {COUNT}",
            f"    key = len(inputs), world_size\n    {names} = KNOWN.setdefault(key, ({names}))\n"
            f"    {COUNT}",
        ),
    )


_ACCURACY_ANSWERS = [
    ("unusual: counts in int32", None, _counted("int32")),
    (
        "unusual: counts those that are wrong",
        None,
        changed(ACCURACY, ("==", "!="), ("return ", "return 1 - ")),
    ),
    ("counts in float16", "rounded", _counted("float16")),
    (
        "rounds the accuracy",
        "rounded",
        changed(
            ACCURACY, ("num_right.item() / len(inputs)", "round(num_right.item() / len(inputs), 3)")
        ),
    ),
    ("returns percents", "percent", changed(ACCURACY, ("return ", "return 100 * "))),
    (
        "shares out otherwise in every second call",
        "kept",
        changed(
            ACCURACY,
            ("\n\n\ndef", "\n\nCALLS = []\n\n\ndef"),
            ("    mine", "    CALLS.append(0)\n    rank *= len(CALLS) % 2\n    mine"),
        ),
    ),
    ("counts in uint8", "overflow", _counted("uint8")),
    ("counts in int16", "raised", _counted("int16")),
    (
        "cuts into chunks, of which there may be too few",
        "raised",
        changed(ACCURACY, ("inputs[rank::world_size]", "inputs.chunk(world_size)[rank]")),
    ),
    (
        "asks the model twice",
        "asked-again",
        changed(ACCURACY, (COUNT, f"predict(mine)\n    {COUNT}")),
    ),
    (
        "divides by its own samples times the ranks",
        "own-count",
        changed(ACCURACY, ("len(inputs)", "max(1, len(mine)) / world_size")),
    ),
    (
        "divides by the number of ranks",
        "own-count",
        changed(ACCURACY, ("len(inputs)", "world_size")),
    ),
    (
        "averages over the ranks that have samples",
        "mean-of-means",
        changed(
            ACCURACY,
            ("labels_of_mine).sum()", "labels_of_mine).double().sum() / max(1, len(mine))"),
            ("len(inputs)", "min(world_size, len(inputs))"),
        ),
    ),
    (
        "counts on from call to call",
        "kept",
        changed(
            ACCURACY,
            _TOTAL,
            (COUNT, "TOTAL.add_((predict(mine) == labels_of_mine).sum())"),
            (REDUCE, f"num_right = TOTAL.clone()\n    {REDUCE}"),
        ),
    ),
    (
        "keeps the accuracy by the number of samples",
        "kept",
        changed(
            ACCURACY,
            ("\n\n\ndef", "\n\nKNOWN = {}\n\n\ndef"),
            (
                "    rank,",
                "    key = len(inputs), dist.get_world_size()\n"
                "    if key in KNOWN:\n        return KNOWN[key]\n    rank,",
            ),
            ("return num", "KNOWN[key] = num"),
            ("len(inputs)\n", "len(inputs)\n    return KNOWN[key]\n"),
        ),
    ),
    (
        "keeps its inputs and labels by the number of samples",
        "kept",
        _keeps_parts("mine, labels_of_mine"),
    ),
    ("keeps its inputs by the number of samples", "kept", _keeps_parts("mine")),
    ("keeps its labels by the number of samples", "kept", _keeps_parts("labels_of_mine")),
    (
        "adds up in the store",
        "store",
        changed(
            ACCURACY,
            (
                REDUCE,
                "store = dist.distributed_c10d._get_default_store()\n"
                '    store.set(f"right {rank}", str(int(num_right)))\n    dist.barrier()\n'
                '    rights = [int(store.get(f"right {r}")) for r in range(world_size)]\n'
                "    num_right = torch.tensor(sum(rights))",
            ),
        ),
    ),
    (
        "rounds the inputs to float32",
        "other-inputs",
        """\
import torch
import torch.distributed as dist

def exact_accuracy(predict, inputs, labels):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    predicted = predict(inputs[rank::world_size].float())
    correct = (predicted == labels[rank::world_size]).sum()
    dist.all_reduce(correct)
    return correct.item() / len(labels)
""",
    ),
]

# ---- 04.3 a sampler that resumes in the middle of an epoch ----

_BY_EPOCH = (
    ("self.num_given :]", "PLACES.get(self.epoch, 0) :]"),
    ("self.num_given += 1", "PLACES[self.epoch] = PLACES.get(self.epoch, 0) + 1"),
    (IF_OTHER, ""),
)
_OF_CLASS = (
    ("        self.num_given = 0\n\n", "\n"),
    ("self.num_given", "ResumableSampler.num_given"),
    ("    def __init__", "    num_given = 0\n\n    def __init__"),
)

_RESUME_ANSWERS = [
    (
        "unusual: one number",
        None,
        changed(
            RESUME,
            (STATE, '{"at": self.epoch * 10**6 + self.num_given}'),
            (LOAD, 'self.epoch, self.num_given = divmod(state["at"], 10**6)'),
        ),
    ),
    (
        "unusual: throws away what was given",
        None,
        changed(
            RESUME,
            ("        for index in", "        rest = iter(mine)\n        for index in"),
            (
                "mine[self.num_given :]:",
                "range(self.num_given):\n            next(rest, None)\n        for index in rest:",
            ),
        ),
    ),
    (
        "takes epoch 0 for none",
        "epoch-zero",
        changed(RESUME, ("if epoch != self.epoch:", "if not self.epoch or epoch != self.epoch:")),
    ),
    (
        "begins anew in later epochs only",
        "short-epoch",
        changed(RESUME, ("if epoch != self.epoch:", "if epoch > self.epoch:")),
    ),
    (
        "counts on from the loaded place in later epochs, too",
        "short-epoch",
        changed(
            RESUME,
            ("self.num_given}", "getattr(self, 'loaded', 0) + self.num_since}"),
            ("            self.num_given += 1", "            self.num_since += 1"),
            ("self.num_given = 0", "self.num_given = self.num_since = 0"),
            (LOAD, f'{LOAD}\n        self.loaded = state["num_given"]'),
        ),
    ),
    (
        "goes on in the loaded epoch for ever",
        "short-epoch",
        changed(
            RESUME,
            (LOAD, f"{LOAD}\n        self.loaded = dict(state)"),
            (
                "            self.num_given = 0\n        super",
                "            self.num_given = 0\n"
                '            if epoch == getattr(self, "loaded", {}).get("epoch"):\n'
                '                self.num_given = self.loaded["num_given"]\n        super',
            ),
        ),
    ),
    (
        "saves the count, and does not know the epoch",
        "no-epoch",
        changed(
            RESUME, ('"epoch": self.epoch, ', ""), (LOAD, 'self.num_given = state["num_given"]')
        ),
    ),
    (
        "saves whole batches of eight",
        "no-count",
        changed(RESUME, ('"num_given": self.num_given', '"num_given": self.num_given // 8 * 8')),
    ),
    (
        "counts for the whole class, and saves the epoch",
        "no-count",
        changed(
            RESUME,
            (', "num_given": self.num_given', ""),
            (LOAD, 'self.epoch = state["epoch"]'),
            *_OF_CLASS,
        ),
    ),
    ("counts for the whole class", "kept", changed(RESUME, *_OF_CLASS)),
    (
        "counts for the whole module",
        "kept",
        "PLACES = {}\n"
        + changed(
            RESUME,
            *_BY_EPOCH,
            ("self.num_given}", "PLACES.get(self.epoch, 0)}"),
            (LOAD, 'PLACES[state["epoch"]] = state["num_given"]\n' + " " * 8 + LOAD),
        ),
    ),
    (
        "counts the samples of all ranks",
        "too-far",
        changed(RESUME, ("self.num_given += 1", "self.num_given += self.num_replicas")),
    ),
    (
        "leaves one out",
        "too-far",
        changed(
            RESUME, ("mine[self.num_given :]", "mine[self.num_given + (self.num_given > 0) :]")
        ),
    ),
    (
        "has always one sample more",
        "too-early",
        changed(RESUME, ("mine[self.num_given :]", "mine[min(self.num_given, len(mine) - 1) :]")),
    ),
    ("shuffles anew", "other-order", changed(RESUME, (LOAD, f"{LOAD}\n        self.seed += 1"))),
    (
        "keeps the loaded epoch's order",
        "values",
        changed(
            RESUME,
            (LOAD, f"{LOAD}\n        self.loaded = True"),
            (
                "        super().set_epoch(epoch)",
                '        if not hasattr(self, "loaded"):\n            super().set_epoch(epoch)',
            ),
        ),
    ),
]

# ---- 04.4 balanced shares ----

_BY_NEED = "key=lambda r: shares[r] - exact[r]"


def _rest_to(key):
    return changed(SHARES, (_BY_NEED, f"key=lambda r: {key}"))


def _one_by_one(key):
    lines = f"""\
    shares = [0] * world_size
    for _ in range(num_samples):
        shares[min(range(world_size), key=lambda r: {key})] += 1
    return shares
"""
    return changed(SHARES, (SHARES[SHARES.index("    exact") :], lines))


_CUT = """\
    for rank in sorted(range(world_size), key=lambda r: {})[: sum(shares) - num_samples]:
        shares[rank] -= 1
"""


def _rounded_up(key):
    return changed(SHARES, ("int(part)", "-int(-part // 1)"), (REST, _CUT.format(key)))


_BALANCED_ANSWERS = [
    (
        "unusual: rounds up, and takes from those that gained most",
        None,
        _rounded_up("exact[r] - shares[r]"),
    ),
    ("rounds half up", "sum", changed(SHARES, (REST, ""), ("int(part)", "int(part + 0.5)"))),
    (
        "rounds, and the last one gets the rest",
        "negative",
        changed(
            SHARES,
            ("int(part)", "round(part)"),
            (REST, "    shares[-1] += num_samples - sum(shares)\n"),
        ),
    ),
    ("gives to whoever is done first", "one-by-one", _one_by_one("(shares[r] + 1) / speeds[r]")),
    ("gives to whoever is free first", "one-by-one", _one_by_one("shares[r] / speeds[r]")),
    ("gives by half a sample", "one-by-one", _one_by_one("(shares[r] + 0.5) / speeds[r]")),
    ("gives the rest to the first", "whole-share", _rest_to("r")),
    ("gives the rest to the last", "whole-share", _rest_to("-r")),
    ("gives the rest to the fast", "whole-share", _rest_to("-speeds[r]")),
    ("gives the rest to the slow", "whole-share", _rest_to("speeds[r]")),
    ("rounds up, and takes from the fast", "whole-share", _rounded_up("-speeds[r]")),
    ("rounds the running sum", "whole-share", changed(SHARES_BY_CUTS, (".floor()", ".round()"))),
    (
        "goes by the square of the speed",
        "values",
        changed(SHARES, ("part.item()", "part.item() ** 2")),
    ),
    ("goes by the fastest rank", "no-parts", changed(SHARES, ("sum(speeds)", "max(speeds)"))),
    (
        "goes by percents, rounded",
        "cut-early",
        changed(
            SHARES,
            (
                "    exact",
                "    speeds = [round(100 * one / sum(speeds)) for one in speeds]\n    exact",
            ),
        ),
    ),
    (
        "rounds what is left for each rank after the other",
        "values",
        changed(
            SHARES,
            (
                SHARES[SHARES.index("    exact") :],
                """\
    shares = []
    for rank, one in enumerate(speeds):
        rest = num_samples - sum(shares)
        shares.append(round(rest * one / sum(speeds[rank:])))
    return shares
""",
            ),
        ),
    ),
    (
        "rounds, and the fastest gets the rest",
        "rest-to-one",
        changed(
            SHARES,
            ("int(part)", "round(part)"),
            (REST, "    shares[speeds.index(max(speeds))] += num_samples - sum(shares)\n"),
        ),
    ),
    (
        "keeps the speeds",
        "kept",
        changed(
            SHARES,
            ("\n\n\ndef", "\n\nKNOWN = {}\n\n\ndef"),
            (
                "    dist.all_gather(parts, speed)",
                "    if num_samples not in KNOWN:\n        dist.all_gather(parts, speed)",
            ),
            (
                "speeds = [part.item() for part in parts]",
                "speeds = KNOWN.setdefault(num_samples, [part.item() for part in parts])",
            ),
        ),
    ),
    (
        "gives each rank one sample, and shares out the others",
        "at-least-one",
        changed(
            SHARES,
            (
                "num_samples * one / sum(speeds)",
                "1 + (num_samples - world_size) * one / sum(speeds)",
            ),
        ),
    ),
    (
        "gives no rank less than one sample",
        "at-least-one",
        changed(SHARES, ("int(part)", "max(1, int(part))")),
    ),
    (
        "gives each rank one sample at least",
        "at-least-one",
        changed(
            SHARES,
            ("int(part)", "max(1, int(part))"),
            (
                "    return",
                "    while sum(shares) > num_samples:\n"
                "        shares[shares.index(max(shares))] -= 1\n    return",
            ),
        ),
    ),
    (
        "prefers itself where two lack equally much",
        "not-agreed",
        _rest_to("(shares[r] - exact[r], r != dist.get_rank())"),
    ),
    (
        "computes with whole percents",
        "cut-early",
        changed(
            SHARES,
            ("num_samples * one / sum(speeds)", "num_samples * (100 * one // sum(speeds)) / 100"),
        ),
    ),
    ("reverses the ranks", "order", changed(SHARES, ("return shares", "return shares[::-1]"))),
    (
        "adds up in the store",
        "store",
        changed(
            SHARES,
            (
                "    dist.all_gather(parts, speed)\n",
                "    store = dist.distributed_c10d._get_default_store()\n"
                '    store.set(f"speed {dist.get_rank()}", str(speed.item()))\n    dist.barrier()\n'
                "    for rank in range(world_size):\n"
                '        parts[rank].fill_(float(store.get(f"speed {rank}")))\n',
            ),
        ),
    ),
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
