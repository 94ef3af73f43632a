"""
Answers to task 04.3.
"""

from bank import Answer, changed

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


_OF_CLASS = (
    ("        self.num_given = 0\n\n", "\n"),
    ("self.num_given", "ResumableSampler.num_given"),
    ("    def __init__", "    num_given = 0\n\n    def __init__"),
)

_ROWS = [
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
        "takes the numbers out of the state that it loads",
        "live-state",
        changed(
            RESUME,
            ('state["epoch"], state["num_given"]', 'state.pop("epoch"), state.pop("num_given")'),
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
    ("counts for the whole class", "kept", changed(RESUME, *_OF_CLASS)),
    (
        "counts the samples of all ranks",
        "too-far",
        changed(RESUME, ("self.num_given += 1", "self.num_given += self.num_replicas")),
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

ANSWERS = [Answer("04.3", *row) for row in _ROWS]
