"""
Answers to task 10.2.
"""

from bank import Answer, changed

SUM = """\
import json
import time
import torch.distributed as dist

def sum_or_missing(tensor, store, number, limit_s):
    give_up_at = time.monotonic() + limit_s
    rank, world_size = dist.get_rank(), dist.get_world_size()
    store.set(f"{number}/{rank}", "here")
    absent, verdict = list(range(world_size)), f"{number}/verdict"
    while absent and time.monotonic() < give_up_at and not store.check([verdict]):
        absent = [r for r in absent if not store.check([f"{number}/{r}"])]
        time.sleep(0.005 if absent else 0)
    missing = json.loads(store.compare_set(verdict, "", json.dumps(absent)))
    if not missing:
        dist.all_reduce(tensor)
    return missing
"""

_DECIDED = 'json.loads(store.compare_set(verdict, "", json.dumps(absent)))'
_LOOP = SUM[SUM.index("    while") : SUM.index("    missing =")]


def _altered(name, mistake, *pairs):
    return Answer("10.2", name, mistake, changed(SUM, *pairs))


ANSWERS = [
    _altered("names nobody", "nobody", ("    return missing", "    return []")),
    _altered("puts no number into its keys", "old-keys", ("{number}/", "")),
    _altered(
        "raises",
        "raised",
        (
            "    return missing",
            "    if missing:\n        raise TimeoutError(missing)\n    return missing",
        ),
    ),
    _altered("returns a set", "no-list", ("return missing", "return set(missing)")),
    _altered(
        "leaves no key of its own", "came", ('    store.set(f"{number}/{rank}", "here")\n', "")
    ),
    _altered(
        "empties the tensor",
        "touched",
        ("    if not missing", "    if missing:\n        tensor.zero_()\n    if not missing"),
    ),
    _altered(
        "adds nothing up", "no-sum", ("    if not missing:\n        dist.all_reduce(tensor)\n", "")
    ),
    _altered(
        "waits until the limit, also when all have come",
        "slow",
        ("while absent and", "while"),
        ("0.005 if absent else 0", "0.005"),
    ),
    _altered(
        "does not look for the verdict while it waits",
        "alone",
        (" and not store.check([verdict])", ""),
    ),
    _altered("gives up after half the time", "impatient", ("+ limit_s", "+ limit_s / 2")),
    _altered(
        "does not name itself",
        "other-list",
        ("return missing", "return [r for r in missing if r != rank]"),
    ),
    Answer(
        "10.2",
        "looks for a verdict, and sets it if there is none",
        "deadlock",
        changed(
            SUM,
            (
                _DECIDED,
                "absent\n    if not store.check([verdict]):\n"
                "        store.set(verdict, json.dumps(absent))\n"
                "    missing = json.loads(store.get(verdict))",
            ),
        ),
        or_mistake="other-list",
    ),
    _altered(
        "waits for all keys at once, and looks for no verdict",
        "too-patient",
        (
            _LOOP,
            "    from datetime import timedelta\n"
            "    try:\n"
            '        keys = [f"{number}/{r}" for r in range(world_size)]\n'
            "        store.wait(keys, timedelta(seconds=limit_s))\n"
            "    except Exception:\n"
            "        pass\n"
            '    absent = [r for r in absent if not store.check([f"{number}/{r}"])]\n',
        ),
    ),
    _altered(
        "meets in a barrier",
        "forbidden",
        ("        dist.all_reduce", "        dist.barrier()\n        dist.all_reduce"),
    ),
    Answer(
        "10.2",
        "counts who has come, and lets the counter decide",
        None,
        """\
import time
import torch.distributed as dist

def sum_or_missing(tensor, store, number, limit_s):
    start, size = time.monotonic(), dist.get_world_size()
    mine = dist.PrefixStore(f"call {number}", store)
    mine.add(f"come {dist.get_rank()}", 1)
    while not mine.check(["over"]):
        here = [r for r in range(size) if mine.check([f"come {r}"])]
        if len(here) == size or time.monotonic() - start >= limit_s:
            text = " ".join(str(r) for r in range(size) if r not in here)
            mine.compare_set("over", "", text + ".")
        time.sleep(0.002)
    absent = [int(word) for word in mine.get("over").decode().rstrip(".").split()]
    if absent:
        return absent
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    return []
""",
    ),
    _altered("looks without a pause", None, ("        time.sleep(0.005 if absent else 0)\n", "")),
]
