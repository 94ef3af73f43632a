"""
More answers to exercise 01: groups out of step, and deadlines.
"""

from bank import Answer, changed

from wrong_answers.process_group import JOIN, LOOP, MISSING, PARITY

_EACH = """\
import time

def missing(store, rank, world_size, deadline_s):
    store.set(f"here/{rank}", "yes")
    absent = []
    for other in range(world_size):
        give_up_at = time.monotonic() + deadline_s
        while not store.check([f"here/{other}"]) and time.monotonic() < give_up_at:
            time.sleep(0.01)
        if not store.check([f"here/{other}"]):
            absent.append(other)
    return absent
"""

_COUNTED = """\
import time

def missing(store, rank, world_size, deadline_s):
    give_up_at = time.monotonic() + deadline_s
    store.add("come", 1)
    while store.add("come", 0) < world_size and time.monotonic() < give_up_at:
        time.sleep(0.01)
    return list(range(store.add("come", 0), world_size))
"""

_LISTED = """\
import json, time

def missing(store, rank, world_size, deadline_s):
    give_up_at = time.monotonic() + deadline_s
    come = json.loads(store.get("come")) if store.check(["come"]) else []
    store.set("come", json.dumps([*come, rank]))
    while True:
        come = json.loads(store.get("come"))
        absent = [r for r in range(world_size) if r not in come]
        if not absent or time.monotonic() >= give_up_at:
            return absent
        time.sleep(0.01)
"""

_WAITED = """\
from datetime import timedelta

def missing(store, rank, world_size, deadline_s):
    store.set(f"here/{rank}", "yes")
    keys = [f"here/{r}" for r in range(world_size)]
    try:
        store.wait(keys, timedelta(seconds=deadline_s))
        return []
    except RuntimeError:
        return [r for r, key in enumerate(keys) if not store.check([key])]
"""

_MADE_FOR_EACH = """\
import torch.distributed as dist

def even_and_odd():
    groups, world_size = {}, dist.get_world_size()
    for rank in range(world_size):
        groups[{key}] = dist.new_group(list(range(rank % 2, world_size, 2)))
    return groups[dist.get_rank(){of}]
"""

_LOOKED_LATE = """\
    absent = list(range(world_size))
    while absent and time.monotonic() < give_up_at:
        absent = [r for r in absent if not store.check([f"here/{r}"])]
        time.sleep(0.01)
"""


def _ended(what):
    return changed(MISSING, ("    return absent", f"    {what}\n    return absent"))


ANSWERS = [
    Answer(
        "01.1",
        "makes the file, and meets through another",
        "other-store",
        changed(
            JOIN,
            ("    store = ", "    open(path, 'a').close()\n    store = "),
            ("FileStore(path,", "FileStore(path + '.mine',"),
        ),
    ),
    Answer(
        "01.1",
        "removes a file that is there",
        "raised",
        changed(
            f"import os\n{JOIN}",
            ("    store = ", "    if os.path.exists(path):\n        os.remove(path)\n    store = "),
        ),
    ),
    Answer(
        "01.1",
        "makes a folder of the path",
        "other-store",
        changed(
            f"import os\n{JOIN}",
            ("    store = ", "    os.makedirs(path, exist_ok=True)\n    store = "),
            ("FileStore(path,", "FileStore(path + '/store',"),
        ),
    ),
    Answer("01.1", "names no backend", None, changed(JOIN, ('"gloo", ', ""))),
    Answer("01.1", "returns the group", None, f"{JOIN}    return dist.group.WORLD\n"),
    Answer(
        "01.1",
        "puts a prefix before its keys",
        None,
        changed(JOIN, ("store=store", 'store=dist.PrefixStore("mine", store)')),
    ),
    Answer(
        "01.2",
        "lets odd ranks alone make the odd group",
        "out-of-step",
        changed(PARITY, ("    odd = ", "    odd = even\n    if rank % 2:\n        odd = ")),
    ),
    Answer(
        "01.2",
        "makes one group more on rank 0",
        "out-of-step",
        changed(
            PARITY, ("    return", "    if rank == 0:\n        dist.new_group([0])\n    return")
        ),
    ),
    Answer(
        "01.2",
        "keeps its groups for the next call",
        "old-group",
        changed(f"import functools\n{PARITY}", ("def even", "@functools.cache\ndef even")),
    ),
    Answer(
        "01.2",
        "makes a group for each rank",
        "not-shared",
        changed(_MADE_FOR_EACH, ("{key}", "rank"), ("{of}", "")),
    ),
    Answer(
        "01.2",
        "waits in a group that it has alone",
        "deadlock",
        changed(
            f"import torch\n{_MADE_FOR_EACH}",
            ("{key}", "rank"),
            ("return groups[dist.get_rank(){of}]", "dist.all_reduce(torch.ones(1), group=mine)"),
            ("    dist.all_reduce", "    mine = groups[dist.get_rank()]\n    dist.all_reduce"),
        )
        + "    return mine\n",
    ),
    Answer(
        "01.2",
        "makes its two groups again for each rank",
        "too-many",
        changed(_MADE_FOR_EACH, ("{key}", "rank % 2"), ("{of}", " % 2")),
    ),
    Answer(
        "01.2",
        "makes both by one call",
        None,
        """\
import torch.distributed as dist

def even_and_odd():
    places = range(dist.get_world_size())
    return dist.new_subgroups_by_enumeration([list(places[0::2]), list(places[1::2])])[0]
""",
    ),
    Answer("01.3", "gives each rank the whole deadline", "too-patient", _EACH),
    Answer(
        "01.3",
        "waits a second more",
        "too-patient",
        changed(MISSING, ("+ deadline_s", "+ deadline_s + 1")),
    ),
    Answer("01.3", "sleeps on when it has looked", "too-patient", _ended("time.sleep(2.2)")),
    Answer("01.3", "asks the clock first", "at-once", changed(MISSING, (LOOP, _LOOKED_LATE))),
    Answer(
        "01.3",
        "looks at a deadline of 0 without a note of its own",
        "at-once",
        changed(
            MISSING,
            (
                "    store.set",
                """\
    if deadline_s == 0:
        return [r for r in range(world_size) if not store.check([f"here/{r}"])]
    store.set""",
            ),
        ),
    ),
    Answer(
        "01.3",
        "asks the clock first, and never names itself",
        "at-once",
        changed(
            MISSING, (LOOP, _LOOKED_LATE), ("range(world_size)", "{*range(world_size)} - {rank}")
        ),
    ),
    Answer(
        "01.3",
        "names nobody at a deadline of 0",
        "nobody",
        changed(
            MISSING, ("    store.set", "    if deadline_s == 0:\n        return []\n    store.set")
        ),
    ),
    Answer(
        "01.3",
        "never looks at the clock",
        "late",
        changed(MISSING, (" or time.monotonic() >= give_up_at", "")),
    ),
    Answer(
        "01.3",
        "waits for all keys at once, without end if the deadline is 0",
        "late",
        _WAITED,
    ),
    Answer(
        "01.3",
        "takes ranks from the list that it goes through",
        "at-once",
        changed(
            MISSING,
            ("    while True", "    absent = list(range(world_size))\n    while True"),
            (
                'absent = [r for r in range(world_size) if not store.check([f"here/{r}"])]',
                """for r in absent:
            if store.check([f"here/{r}"]):
                absent.remove(r)""",
            ),
        ),
    ),
    Answer("01.3", "adds itself to a list in the store", "lost", _LISTED),
    Answer("01.3", "counts who has come", "other-ranks", _COUNTED),
    Answer(
        "01.3", "takes its note away again", "withdrawn", _ended('store.delete_key(f"here/{rank}")')
    ),
    Answer(
        "01.3",
        "gives up after half the time",
        "impatient",
        changed(MISSING, ("+ deadline_s", "+ deadline_s / 2")),
    ),
    Answer("01.3", "begins with the highest", "order", _ended("absent.reverse()")),
    Answer(
        "01.3",
        "waits for all keys at once",
        None,
        changed(_WAITED, ("seconds=deadline_s", "seconds=max(deadline_s, 0.001)")),
    ),
]
