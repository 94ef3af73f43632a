"""
Task 01.3: name the missing ranks.
"""

import time
from datetime import timedelta

import torch.distributed as dist

from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.checks.kit.inside.own_time import (
    processes_of,
    tell_end,
    tell_process,
    timed,
    wait_for_ends,
)
from ddp_lessons.pictures import holdings_picture

_NEARLY = 0.8  # of a deadline: who waited until it was over waited for this, less for a core
_LATE_S, _SLACK_S, _SET_S = 0.3, 2.0, 0.03

_TOO_LATE_S = 0.5  # after the deadline, or 1 s, as a FileStore waits so long at least


def _cases(draw):
    yield Case(4, {"absent": [1], "late": [], "too late": [3], "deadline_s": 0.9}, seed=0)
    yield Case(1, {"absent": [], "late": [], "deadline_s": 0})
    # Of more ranks than run: as texts, 10 and 11 stand before 2.
    absent = list(range(2, 12))
    yield Case(3, {"absent": absent, "late": [], "too late": [1], "deadline_s": 0, "of": 12})
    yield Case(draw.choice((2, 3)), {"absent": [], "late": [], "deadline_s": 2.5})
    late = draw.randint(1, 3)
    yield Case(4, {"absent": [], "late": [late], "deadline_s": 2.5})
    # So many that a deadline for each, one after the other, is far too long on any machine.
    absent = [*sorted(draw.sample(range(4), 2)), *range(4, 12)]
    yield Case(4, {"absent": absent, "late": [], "deadline_s": 0.55, "of": 12})


class _SlowStore(dist.FileStore):
    # Who reads a list, adds to it and writes it back takes away what others wrote meanwhile.
    def set(self, key, value):
        time.sleep(_SET_S)
        super().set(key, value)


def _act(here, missing):
    if here.rank in here["absent"]:
        return None
    store = _SlowStore(str(here.folder / f"roll-{here.case.seed}"), here.world_size)
    store.set_timeout(timedelta(seconds=1))  # for an answer that waits for a key in vain
    watch = dist.FileStore(str(here.folder / f"watch-{here.case.seed}"), here.world_size)
    tell_process(watch, here.rank)
    processes_of(watch, _others_present(here))  # all clocks start together, however busy it is
    if here.rank in here["late"]:
        time.sleep(_LATE_S)
    if here.rank in _too_late(here.case):
        _come_too_late(here, watch)
    watch.set(f"began/{here.rank}", "yes")
    num_ranks = here.case.data.get("of", here.world_size)
    took = []
    with timed(took):
        here.call(missing, store, here.rank, num_ranks, here["deadline_s"])
    tell_end(watch, here.rank)
    return took[0]


def _too_late(case):
    return case.data.get("too late", [])


def _others_present(here):
    away = (*here["absent"], *_too_late(here.case))
    return [rank for rank in range(here.world_size) if rank not in away]


def _come_too_late(here, watch):
    """
    Wait until the others have returned, or should have.
    """
    others = _others_present(here)
    for rank in others:
        watch.get(f"began/{rank}")
    wait_for_ends(watch, others, max(here["deadline_s"], 1) + _TOO_LATE_S)


def _judge(played):
    w, away, too_late = played.case.world_size, played.case["absent"], _too_late(played.case)
    present = [rank for rank in range(w) if rank not in away]
    results = {rank: played.seen[rank].calls[-1].result for rank in present}
    everyone = range(played.case.data.get("of", w))
    others = {rank: [other for other in everyone if other != rank] for rank in present}
    missed = {rank: sorted({*away, *too_late} - {rank}) for rank in present}
    missed |= dict.fromkeys(too_late, away)
    is_one_look = played.case["deadline_s"] == 0
    for rank in too_late if not is_one_look else ():
        got = results[rank]
        gone = [other for other in present if other not in too_late]
        others_are_right = any(results[other] == missed[other] for other in gone)
        if others_are_right and isinstance(got, list) and rank not in got and {*gone} & {*got}:
            fact = f"Rank {rank} came last. It names ranks that had come, and have returned."
            raise played.wrong("withdrawn", rank, got=got, expected=missed[rank], fact=fact)
    for rank in present:
        got, absent = results[rank], missed[rank]
        both = {"got": got, "expected": absent}
        if not isinstance(got, list) or any(type(one) is not int for one in got):
            raise played.wrong("no-list", rank, **both, fact="It must return a list of ranks.")
        if got == absent:
            continue
        if is_one_look and {*got} - {*absent}:
            raise played.wrong("at-once", rank, **both, fact="It names a rank that has come.")
        has_waited = played.seen[rank].kept[0] >= played.case["deadline_s"]
        if rank in got and ({*present} - {*too_late} <= {*got} or not has_waited):
            raise played.wrong("unsaid", rank, **both, fact="It names a rank that has come.")
        if {*got} == {*absent}:
            fact = "The ranks are not in rising order, each once."
            raise played.wrong("order", rank, **both, fact=fact)
        if len(got) == len(absent):
            fact = "It names as many ranks as are missing, and others."
            raise played.wrong("other-ranks", rank, **both, fact=fact)
        if has_waited and all(results[r] == others[r] for r in present):
            fact = "It names all other ranks, and some of them came within the deadline."
            raise played.wrong("all-or-none", rank, **both, fact=fact)
        if {*got} - {*absent}:
            fact = "It names a rank that came within the deadline."
            mistake = "lost" if has_waited else "impatient"
            raise played.wrong(mistake, rank, **both, fact=fact)
        if not got:
            raise played.wrong(
                "nobody", rank, **both, fact="It names nobody, and ranks are missing."
            )
        if {*absent} - {*got} <= {*too_late}:
            fact = "It does not name a rank that came after the deadline."
            raise played.wrong("too-patient", rank, **both, fact=fact)
        raise played.wrong("nobody", rank, **both, fact="It does not name all that are missing.")
    for rank in present:
        (by_clock_s, own_s), deadline_s = played.seen[rank].kept, played.case["deadline_s"]
        if not missed[rank] and own_s >= _NEARLY * deadline_s > 0:
            fact = "All ranks had come, and it waited until the deadline."
            raise played.wrong("slow", rank, fact=fact)
        if missed[rank] and by_clock_s < 0.9 * deadline_s:
            fact = "It gave up before the deadline was over."
            raise played.wrong("impatient", rank, fact=fact)
        if own_s > deadline_s + _SLACK_S:
            fact = f"The deadline was {deadline_s:g} s, and it took over {_SLACK_S:g} s more."
            raise played.wrong("too-patient", rank, fact=fact)


def _draw(played):
    absent = played.case["absent"]
    return holdings_picture(
        ["missing"],
        [
            {} if rank in absent else {"missing": str(played.seen[rank].calls[-1].result)}
            for rank in range(played.case.world_size)
        ],
    )


missing = Task(
    number="01.3",
    name="missing",
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="named at the deadline, and at once when all had come",
    draw=_draw,
    hints=(
        "A rank that is away answers nothing. But those that come can leave a note in the store.",
        "Write a key of this rank first. Then look for the keys of the others, again and again, "
        "until all are there or the time is over.",
        "store.check([key]) says at once whether a key is there; store.get(key) would wait for it. "
        "time.monotonic() tells the time.",
        'absent = [r for r in absent if not store.check([f"here/{r}"])] goes into a while loop '
        "that also looks at the clock.",
    ),
    mistakes={
        "no-list": "Return a list of ranks; an empty one if all have come.",
        "unsaid": "Each rank must write a key of its own first, and look for the keys of others.",
        "at-once": "A deadline of 0 leaves time for one look: leave this rank's note, look, and "
        "then only ask whether the time is over.",
        "other-ranks": "How many have come does not tell who: let each rank leave a note of its "
        "own.",
        "order": "Return the ranks in rising order, each once.",
        "all-or-none": "Asked for several keys, store.check only says whether all are there. Ask "
        "for the key of each rank by itself.",
        "lost": "Leave a note under a key of this rank alone. Who reads a list and writes it back "
        "takes away what others have written meanwhile.",
        "withdrawn": "Leave the note in the store when you return: a rank that comes later looks "
        "for it.",
        "too-patient": "The deadline begins with the call, and there is one for all ranks "
        "together, not one for each.",
        "impatient": "Leave this rank's note, look, and then ask the time: until the deadline is "
        "over, look again, as a rank may still come. It counts from this rank's own call, in "
        "seconds and their parts.",
        "nobody": "Return all ranks whose keys are not there when the time is over.",
        "slow": "Return as soon as all keys are there.",
        "raised": "A line that is named is yours. Perhaps it waits: store.get and store.wait raise "
        "when a key does not come. store.check only asks, and takes a list of keys.",
        "late": "Look at the clock as often as for the keys, and end when the time is over. To "
        "store.wait, a timeout of 0 means none: it waits for ever.",
    },
    in_group=False,
    waits_s=5.0,
)
