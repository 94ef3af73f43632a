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


ANSWERS = [
    Answer(
        "01.3",
        "looks once a second",
        "too-patient",
        changed(MISSING, ("sleep(0.01)", "sleep(1)")),
    ),
    Answer(
        "01.3",
        "keeps what its first look showed",
        "one-look",
        changed(
            MISSING,
            (
                LOOP,
                """\
    absent = [r for r in range(world_size) if not store.check([f"here/{r}"])]
    while absent and time.monotonic() < give_up_at:
        time.sleep(0.01)
""",
            ),
        ),
    ),
    Answer(
        "01.3",
        "writes no key of its own",
        "unsaid",
        changed(MISSING, ('    store.set(f"here/{rank}", "yes")\n', "")),
    ),
    Answer("01.3", "names nobody", "values", changed(MISSING, ("return absent", "return []"))),
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
    Answer(
        "01.3",
        "starts its deadline anew whenever a rank arrives",
        "restarted",
        changed(
            MISSING,
            (
                "        if not absent",
                """\
        if len(absent) < num_absent:
            num_absent, give_up_at = len(absent), time.monotonic() + deadline_s
        if not absent""",
            ),
            ("    while True", "    num_absent = world_size\n    while True"),
        ),
    ),
    Answer("01.3", "asks the clock first", "at-once", changed(MISSING, (LOOP, _LOOKED_LATE))),
    Answer(
        "01.3",
        "never looks at the clock",
        "late",
        changed(MISSING, (" or time.monotonic() >= give_up_at", "")),
    ),
    Answer("01.3", "adds itself to a list in the store", "lost", _LISTED),
    Answer(
        "01.3",
        "gives up after half the time",
        "impatient",
        changed(MISSING, ("+ deadline_s", "+ deadline_s / 2")),
    ),
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
