"""
Answers to task 01.3.
"""

from bank import Answer, changed

MISSING = """\
import time

def missing(store, rank, world_size, deadline_s):
    give_up_at = time.monotonic() + deadline_s
    store.set(f"here/{rank}", "yes")
    while True:
        absent = [r for r in range(world_size) if not store.check([f"here/{r}"])]
        if not absent or time.monotonic() >= give_up_at:
            break
        time.sleep(0.01)
    return absent
"""

LOOP = MISSING[MISSING.index("    while") : MISSING.index("    return")]

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
        "01.3",
        "writes no key of its own",
        "unsaid",
        changed(MISSING, ('    store.set(f"here/{rank}", "yes")\n', "")),
    ),
    Answer(
        "01.3",
        "looks once",
        "impatient",
        changed(
            MISSING,
            (
                LOOP,
                '    absent = [r for r in range(world_size) if not store.check([f"here/{r}"])]\n',
            ),
        ),
    ),
    Answer("01.3", "names nobody", "nobody", changed(MISSING, ("return absent", "return []"))),
    Answer(
        "01.3",
        "sleeps until the deadline, then looks",
        "slow",
        changed(
            MISSING,
            (
                LOOP,
                """\
    time.sleep(deadline_s)
    absent = [r for r in range(world_size) if not store.check([f"here/{r}"])]
""",
            ),
        ),
    ),
    Answer(
        "01.3",
        "gets the keys of the others",
        "raised",
        changed(MISSING, ('not store.check([f"here/{r}"])', 'store.get(f"here/{r}") != b"yes"')),
    ),
    Answer(
        "01.3",
        "returns a set",
        "no-list",
        changed(MISSING, ("return absent", "return set(absent)")),
    ),
    Answer(
        "01.3",
        "waits for each key with the time that is left",
        None,
        """\
import time
from datetime import timedelta

def missing(store, rank, world_size, deadline_s):
    give_up_at, absent = time.monotonic() + deadline_s, []
    store.add(str(rank), 1)
    for other in range(world_size):
        left_s = max(give_up_at - time.monotonic(), 0.01)
        while not store.check([str(other)]) and time.monotonic() < give_up_at:
            time.sleep(min(left_s, 0.01))
        if not store.check([str(other)]):
            absent.append(other)
    return absent
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
    Answer(
        "01.3",
        "asks whether all are there, and names all others if not",
        "all-or-none",
        changed(
            MISSING,
            (
                'absent = [r for r in range(world_size) if not store.check([f"here/{r}"])]',
                """others = [r for r in range(world_size) if r != rank]
        is_full = not others or store.check([f"here/{r}" for r in others])
        absent = [] if is_full else others""",
            ),
        ),
    ),
    Answer(
        "01.3",
        "counts whole seconds",
        "impatient",
        changed(MISSING, ("+ deadline_s", "+ int(deadline_s)")),
    ),
    Answer(
        "01.3",
        "counts from the call of whoever came first",
        "impatient",
        changed(
            MISSING,
            (
                "time.monotonic() + deadline_s",
                'float(store.compare_set("began", "", str(time.monotonic()))) + deadline_s',
            ),
        ),
    ),
    Answer("01.3", "begins with the highest", "order", _ended("absent.reverse()")),
    Answer("01.3", "sorts ranks as texts", "order", _ended("absent.sort(key=str)")),
    Answer(
        "01.3",
        "has one bit a rank in the store",
        None,
        """\
import time

def missing(store, rank, world_size, deadline_s):
    start, everyone = time.perf_counter(), (1 << world_size) - 1
    come = store.add("who has come", 1 << rank)
    while come != everyone and time.perf_counter() - start < deadline_s:
        time.sleep(0.005)
        come = store.add("who has come", 0)
    return [r for r in range(world_size) if not come >> r & 1]
""",
    ),
    Answer(
        "01.3",
        "waits for all keys at once",
        None,
        changed(_WAITED, ("seconds=deadline_s", "seconds=max(deadline_s, 0.001)")),
    ),
]
