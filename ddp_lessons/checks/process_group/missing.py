"""
Task 01.3: name the missing ranks.

On each rank: `_act`, `_others_present`, `_come_too_late`; in both: `_NotedStore`, `_too_late`. In
the kernel: the rest.
"""

import time
from datetime import timedelta

import torch.distributed as dist

from ddp_lessons.checks.kit import VALUES, Case, Expected, Mistake, Task
from ddp_lessons.checks.kit.on_rank.fair_timing import (
    processes_of,
    tell_end,
    tell_process,
    timed,
    wait_for_ends,
)
from ddp_lessons.pictures import holdings_picture

_NEARLY = 0.8  # share of a deadline that counts as all of it: waits for a core are subtracted
_LATE_S, _SET_S, _CHECK_S = 0.8, 0.03, 0.002
_SLACK_S = 0.4  # less than _LATE_S: an answer that a late rank delays must not pass
_BLOCKS_S = 0.05  # a call of the store that takes longer has blocked
_BLOCKED_S = 2.0  # a right answer's calls may block for so long, all together

_TOO_LATE_S = 0.5  # after the deadline, or after 1 s: a FileStore blocks at least so long


def _cases(draw):
    yield Case(4, {"absent": [1], "late": [], "too late": [3], "deadline_s": 0.9}, seed=0)
    yield Case(1, {"absent": [], "late": [], "deadline_s": 0})
    # The world has more ranks than run. Sorted as texts, 10 and 11 come before 2.
    absent = list(range(2, 12))
    yield Case(3, {"absent": absent, "late": [], "too late": [1], "deadline_s": 0, "of": 12})
    yield Case(draw.choice((2, 3)), {"absent": [], "late": [], "deadline_s": 2.5})
    late, never = draw.sample(range(1, 4), 2)
    yield Case(4, {"absent": [], "late": [late], "deadline_s": 3.0})
    # So many ranks are absent that one deadline for each takes far too long on any machine. The
    # deadline is so short that a rank that looks once a second is late.
    many = [*sorted(draw.sample(range(4), 2)), *range(4, 12)]
    yield Case(4, {"absent": many, "late": [], "deadline_s": 0.25, "of": 12})
    yield Case(4, {"absent": [never], "late": [late], "deadline_s": 3.0})


class _NotedStore(dist.FileStore):
    # `inside_s` is the duration of all its calls that block: `get` and `wait` do, in steps of 1 s.
    def __init__(self, *args):
        super().__init__(*args)
        self.calls, self.inside_s = [], 0.0


def _noted(name):
    def call(store, key, *args):
        began_s = time.monotonic()
        store.calls.append((name, key))
        # Others write meanwhile. An answer that writes back a list it has read loses their entries.
        if name == "set":
            time.sleep(_SET_S)
        # A network takes time, too. Otherwise ranks that look without a pause wait for each
        # other's cores, and such waits are subtracted from the time that an answer has taken.
        if name == "check":
            time.sleep(_CHECK_S)
        try:
            return getattr(dist.FileStore, name)(store, key, *args)
        finally:
            took_s = time.monotonic() - began_s
            store.inside_s += took_s if took_s > _BLOCKS_S else 0

    return call


_WRITES = ("set", "add", "compare_set")
for _name in (*_WRITES, "check", "get", "wait"):
    setattr(_NotedStore, _name, _noted(_name))


def _act(context, missing):
    if context.rank in context["absent"]:
        return {"took_s": (0, 0), "inside_s": 0, "calls": []}
    store = _NotedStore(str(context.folder / f"roll-{context.case.seed}"), context.world_size)
    store.set_timeout(timedelta(seconds=1))  # for an answer that waits for a key in vain
    watch = dist.FileStore(str(context.folder / f"watch-{context.case.seed}"), context.world_size)
    tell_process(watch, context.rank)
    processes_of(watch, _others_present(context))  # all clocks start together, even under load
    if context.rank in context["late"]:
        time.sleep(_LATE_S)
    if context.rank in _too_late(context.case):
        _come_too_late(context, watch)
    watch.set(f"began/{context.rank}", "yes")
    num_ranks = context.case.data.get("of", context.world_size)
    took = []
    with timed(took):
        context.call(missing, store, context.rank, num_ranks, context["deadline_s"])
    tell_end(watch, context.rank)
    return {"took_s": took[0], "inside_s": store.inside_s, "calls": store.calls}


def _too_late(case):
    return case.data.get("too late", [])


def _others_present(context):
    away = (*context["absent"], *_too_late(context.case))
    return [rank for rank in range(context.world_size) if rank not in away]


def _come_too_late(context, watch):
    """
    Wait until the other ranks have returned, or until they should have.
    """
    others = _others_present(context)
    for rank in others:
        watch.get(f"began/{rank}")
    wait_for_ends(watch, others, max(context["deadline_s"], 1) + _TOO_LATE_S)


def _expected(case, rank):
    absent, too_late = case["absent"], _too_late(case)
    if rank in absent:
        return None
    return absent if rank in too_late else sorted({*absent, *too_late})


def _is_no_list(view):
    is_list = isinstance(view.got, list) and all(type(one) is int for one in view.got)
    return view.expected is not None and not is_list


def _names_present(view):
    return view.is_off and bool({*view.got} - {*view.expected})


def _set_keys(seen):
    return {key for name, key in seen.output["calls"] if name == "set"}


def _writes_over(view):
    others = (seen for seen in view.case_result.seen if seen.rank != view.rank)
    return any(_set_keys(view.seen) & _set_keys(other) for other in others)


def _looks_first(view):
    calls = [seen.output["calls"] for seen in view.case_result.seen if seen.calls]
    return any(not each or each[0][0] not in _WRITES for each in calls)


def _gives_up(view):
    by_clock_s, _ = view.output["took_s"]
    return bool(view.got) and by_clock_s < 0.9 * view.case["deadline_s"]


def _is_too_patient(view):
    inside_s, (_, own_s) = view.output["inside_s"], view.output["took_s"]
    late_s = own_s - view.case["deadline_s"]
    if late_s > _SLACK_S + min(inside_s, _BLOCKED_S):
        return (
            f"The deadline was {view.case['deadline_s']:g} s, and the call took {late_s:.1f} s "
            "more."
        )
    missed = {*view.expected} - {*view.got} if view.is_off else set()
    is_late = missed and missed <= {*_too_late(view.case)}
    return is_late and "It does not name a rank that came after the deadline."


def _is_restarted(view):
    return view.case["absent"] and view.case["late"] and _is_too_patient(view)


def _is_slow(view):
    _, own_s = view.output["took_s"]
    return view.expected == [] and own_s >= _NEARLY * view.case["deadline_s"] > 0


def _draw(case_result):
    absent = case_result.case["absent"]
    return holdings_picture(
        ["missing"],
        [
            {} if rank in absent else {"missing": str(case_result.seen[rank].calls[-1].result)}
            for rank in range(case_result.case.world_size)
        ],
    )


missing = Task(
    number="01.3",
    name="missing",
    cases=_cases,
    act=_act,
    ok="absent ranks are named at the deadline, or at once if all have come",
    draw=_draw,
    hints=(
        "A missing rank gives no answer. But each rank that arrives can set a key in the store.",
        "Set a key of this rank first. Then look for the keys of the other ranks, again and again, "
        "until all exist or the deadline is over.",
        "store.check([key]) returns at once whether a key exists; store.get(key) would wait for "
        "it. time.monotonic() returns the time in seconds.",
        'absent = [r for r in absent if not store.check([f"here/{r}"])] goes into a while loop '
        "that also looks at the clock.",
    ),
    expected=Expected(_expected),
    mistakes=(
        Mistake(
            "no-list",
            "Return a list of ranks, or an empty list if all have arrived.",
            "It must return a list of ranks.",
            shows=_is_no_list,
        ),
        Mistake(
            "lost",
            "Set a key that only this rank sets. A rank that reads a list from the store and "
            "writes it back deletes what other ranks have added meanwhile.",
            "It names a rank that has arrived, and several ranks set the same key.",
            shows=lambda view: _names_present(view) and _writes_over(view),
        ),
        Mistake(
            "unsaid",
            "Each rank must set its own key before it looks for the keys of the others.",
            "It names a rank that has arrived, and some rank looks before it sets its own key.",
            shows=lambda view: _names_present(view) and _looks_first(view),
        ),
        Mistake(
            "at-once",
            "A deadline of 0 leaves time for one look: set this rank's key, look, and only then "
            "ask whether the deadline is over.",
            "It names a rank that has arrived.",
            shows=lambda view: _names_present(view) and view.case["deadline_s"] == 0,
        ),
        Mistake(
            "impatient",
            "Set this rank's key, look, and then ask the time. Look again until the deadline is "
            "over, because a rank may still arrive. The deadline counts from this rank's own "
            "call, in seconds and fractions of a second.",
            "It gave up before the deadline was over.",
            shows=_gives_up,
        ),
        Mistake(
            "one-look",
            "Look for the key of every missing rank again in each round, and ask for each key "
            "alone: with several keys, store.check only returns whether all of them exist.",
            "It names ranks that arrived within the deadline.",
            shows=lambda view: (
                _names_present(view)
                and view.rank not in _too_late(view.case)
                and len(view.got) > len(view.expected)
            ),
        ),
        Mistake(
            "restarted",
            "Compute the moment of the deadline once, before the loop. It must not move if a rank "
            "arrives.",
            shows=_is_restarted,
        ),
        Mistake(
            "too-patient",
            "The deadline holds for all ranks together. Look many times a second by store.check, "
            "which does not wait: store.get and store.wait block for each key that is missing, "
            "and raise an error in the end.",
            shows=_is_too_patient,
            raises=("Timeout waiting", "Wait timeout"),
        ),
        VALUES,
        Mistake(
            "slow",
            "Return as soon as all keys exist.",
            "All ranks had arrived, and the call waited until the deadline.",
            shows=_is_slow,
        ),
        Mistake(
            "late",
            "Ask the time after each look, and return when the deadline is over. For store.wait, a "
            "timeout of 0 means no timeout: it waits for ever.",
        ),
    ),
    in_group=False,
    extra_time_s=8.0,
)
