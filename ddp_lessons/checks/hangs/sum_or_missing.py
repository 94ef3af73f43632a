"""
Task 10.2: a timeout that names who is missing.

On each rank: `_act`; in both: `_ranks`, `limit_of`, `_numbers`. In the kernel: the rest.
"""

import time
from datetime import timedelta

import torch.distributed as dist

from ddp_lessons.checks.hangs.turns import SlowStore, Turn
from ddp_lessons.checks.kit import Case, Mistake, Task, equal, whole_numbers, words
from ddp_lessons.checks.kit.on_rank.fair_timing import tell_end, tell_process, timed, wait_for_ends
from ddp_lessons.checks.kit.on_rank.snapshots import plain
from ddp_lessons.pictures import holdings_picture

_LATE_S, _LATER_S, _SLACK_S, _TOO_LATE_S = 0.2, 1.5, 1.2, 0.7
_SHORT_S, _LONG_S = 1.0, 3.1
_PATIENT_S = 2.5  # so long that a second one exceeds the slack, even after _LATER_S
_WAITED_S = 0.3
_NEARLY = 0.8  # share of a limit that counts as all of it: waits for a core are subtracted
_LENGTH = 3


def _cases(draw):
    yield Case(4, {"too late": [2], "hurried": [0, 1]}, seed=0)
    yield Case(1, {})
    yield Case(draw.choice((2, 3)), {})
    yield Case(4, {"late": [draw.randrange(4)]})
    hurried, late = draw.sample(range(1, 4), 2)  # not rank 0: overlooking it is another mistake
    yield Case(4, {"too late": [late], "hurried": [hurried], "slow store": True})
    yield Case(4, {"too late": [late], "hurried": [hurried], "calls": 2})
    other, hurried = draw.sample(range(1, 4), 2)
    (late,) = {1, 2, 3} - {other, hurried}  # its arrival must not extend a limit
    what = {"absent": [0, other], "late": [late], "hurried": [hurried]}
    yield Case(4, what | {"limit": _PATIENT_S, "late by": _LATER_S})


def _ranks(case, what):
    return case.data.get(what, [])


def limit_of(case, rank):
    """
    Return the limit of a rank, in seconds.
    """
    short_s = case.data.get("limit", _SHORT_S)
    return short_s if rank in _ranks(case, "hurried") else short_s - _SHORT_S + _LONG_S


def _act(context, answer):
    case, rank = context.case, context.rank
    file = str(context.folder / f"calls-{case.seed}-{context.world_size}")
    watch = dist.FileStore(str(context.folder / f"watch-{case.seed}-{context.world_size}"))
    tell_process(watch, rank)
    is_slow = "slow store" in case.data
    # The rank that is too late arrives when another rank is about to write its decision.
    store = SlowStore(file, lambda: tell_end(watch, rank)) if is_slow else dist.FileStore(file)
    store.set_timeout(timedelta(seconds=3))  # for an answer that waits for a key in vain
    num_calls, took = case.data.get("calls", 1), []
    for number in range(1, num_calls + 1):
        is_last = number == num_calls
        tensor = _numbers(case, rank, number).to(context.device)
        dist.barrier()
        if is_last and rank in _ranks(case, "absent"):
            break
        if is_last and rank in _ranks(case, "late"):
            time.sleep(case.data.get("late by", _LATE_S))
        if is_last and rank in _ranks(case, "too late"):
            # Wait until the hurried ranks have given this rank up, or should have.
            wait_for_ends(watch, _ranks(case, "hurried"), _SHORT_S + _TOO_LATE_S)
        with timed(took):
            context.call(answer, tensor, store, number, limit_of(case, rank))
        if is_last:
            tell_end(watch, rank)
    return took


def _numbers(case, rank, number):
    return whole_numbers(case, f"{rank} {number}", (_LENGTH,))


def _turns(view):
    turns = []
    for number, (call, took) in enumerate(zip(view.seen.calls, view.output, strict=True), start=1):
        is_last = number == view.case.data.get("calls", 1)
        away = _ranks(view.case, "absent") + _ranks(view.case, "too late") if is_last else []
        turns.append(Turn(call, took[0], took[1], sorted(away)))
    return turns


def _in_a_turn(fact_of):
    """
    Return a `shows` that returns the first fact that `fact_of(view, turn)` finds in the calls.
    """
    return lambda view: next(filter(None, (fact_of(view, turn) for turn in _turns(view))), "")


def _limit_s(view):
    return limit_of(view.case, view.rank)


def _is_hurried(view):
    return view.rank in _ranks(view.case, "hurried")


def _told(turn):
    return f"It returns {turn.call.result}, and {turn.away} is right."


def _is_no_list(view, turn):
    got = turn.call.result
    is_list = isinstance(got, list) and all(type(one) is int for one in got)
    return (not is_list or (got != turn.away and sorted({*got}) == turn.away)) and _told(turn)


def _waits_too_long(view, turn):
    if not (turn.away and _is_hurried(view)):
        return ""
    # A rank that begins the all-reduce too early blocks in it until the late rank arrives. That is
    # another mistake, so this time is taken off.
    ends = [(event, event.wait_end_ns or event.end_ns) for event in turn.call.events]
    in_sums_s = sum(end - event.start_ns for event, end in ends if event.is_communication and end)
    looked_s, limit_s = turn.own_s - in_sums_s / 1e9, _limit_s(view)
    has_missed = turn.call.result == [] and looked_s > limit_s + _WAITED_S
    is_late = view.rank not in turn.away and turn.own_s > limit_s + _SLACK_S
    return (has_missed or is_late) and f"Its limit was {limit_s:g} s, and it waited for longer."


def _sees_old_keys(view, turn):
    is_second = "calls" in view.case.data and turn.away and not turn.call.result
    return is_second and "In the second call, it takes ranks for present that came to the first."


def _names_too_few(view, turn):
    is_late = view.rank in _ranks(view.case, "too late")
    return not is_late and {*turn.away} - {*turn.call.result} and _told(turn)


def _has_another_list(view, turn):
    is_late = view.rank in _ranks(view.case, "too late")
    return (
        is_late
        and turn.call.result != turn.away
        and (f"This rank came when others had given it up. {_told(turn)}")
    )


def _names_too_many(view, turn):
    is_late = view.rank in _ranks(view.case, "too late")
    return (
        not is_late
        and turn.call.result != turn.away
        and f"It names a rank that had come. {_told(turn)}"
    )


def _num_sums(turn):
    return sum(event.name == "all_reduce" for event in turn.call.events)


def _touches(view, turn):
    if turn.away and _num_sums(turn):
        return "Not all ranks had come, and it began an all-reduce."
    is_changed = turn.away and not equal(turn.call.before[0], turn.call.after[0])
    return is_changed and "Not all ranks had come, and `tensor` is not as it was."


def _has_no_sum(view):
    for number, turn in enumerate(_turns(view), start=1):
        if turn.away:
            continue
        total = plain(sum(_numbers(view.case, r, number) for r in range(view.case.world_size)))
        if not equal(turn.call.after[0], total):
            return (
                f"All ranks had come, and `tensor` is {words(turn.call.after[0])}, and not "
                f"{words(total)}."
            )
        if _num_sums(turn) != 1:
            return f"It made {_num_sums(turn)} all-reduces in a call."
    return ""


def _is_slow(view, turn):
    return not turn.away and turn.own_s >= _NEARLY * _limit_s(view)


def _gives_up_early(view):
    # A hurried rank that began later may find the decision of another one whose time is over, so
    # only the longest of their waits is compared with the limit.
    hurried = _ranks(view.case, "hurried")
    took_s = [view.case_result.seen[rank].output[-1][0] for rank in hurried]
    return view.rank in hurried and max(took_s) < 0.9 * _limit_s(view)


def _goes_on_alone(view, turn):
    return turn.away and not _is_hurried(view) and turn.own_s >= _NEARLY * _limit_s(view)


def _draw(case_result):
    held = [
        {"limit": f"{limit_of(case_result.case, rank)} s", "missing": str(result)}
        for rank, result in enumerate(case_result.results)
    ]
    return holdings_picture(["limit", "missing"], held)


sum_or_missing = Task(
    number="10.2",
    name="sum_or_missing",
    cases=_cases,
    act=_act,
    ok="one decision for all, and the sum when all had come",
    draw=_draw,
    hints=(
        "An all-reduce cannot be taken back. So all ranks must know that all have come before "
        "one of them begins it.",
        "Each rank leaves a key in the store, and looks for those of the others. "
        "store.check([key]) says at once whether a key is there.",
        "Two ranks may look at two moments, and see two things. So let the store hold one verdict: "
        "who is first writes it, all others read it, and look for it while they wait.",
        'missing = json.loads(store.compare_set(f"{number}/verdict", "", json.dumps(absent))), by '
        "everyone, also by who has seen that all have come.",
    ),
    mistakes=(
        Mistake(
            "no-list",
            "Return a list of ranks in rising order, each once; an empty one if all have come.",
            shows=_in_a_turn(_is_no_list),
        ),
        Mistake(
            "too-patient",
            "The limit counts from the call, and there is one for all other ranks together, not "
            "one for each. store.check only asks. store.get and store.wait wait, even for longer "
            "than they are told, and see no decision of others meanwhile.",
            shows=_in_a_turn(_waits_too_long),
        ),
        Mistake(
            "old-keys",
            "Keys stay in the store: put `number` into each of them.",
            shows=_in_a_turn(_sees_old_keys),
        ),
        Mistake(
            "nobody",
            "Return all ranks that had left no key when the time was over.",
            shows=_in_a_turn(_names_too_few),
        ),
        Mistake(
            "came",
            "Each rank must leave a key of its own first, and look for it anew in each turn of the "
            "loop, until its time is over.",
            shows=_in_a_turn(_names_too_many),
        ),
        Mistake(
            "other-list",
            "A rank that comes late must find what the others have decided. Leave the decision in "
            "the store by compare_set, which looks and writes in one act, and have every rank go "
            "by what it returns.",
            shows=_in_a_turn(_has_another_list),
        ),
        Mistake(
            "touched",
            "Begin the all-reduce, and change the tensor, only when the decision says that all "
            "have come.",
            shows=_in_a_turn(_touches),
        ),
        Mistake(
            "no-sum",
            "When all have come, add up over the group, in place, by one all_reduce.",
            shows=_has_no_sum,
        ),
        Mistake(
            "slow",
            "Return as soon as all keys are there.",
            "All ranks had come, and it waited until its time was over.",
            shows=_in_a_turn(_is_slow),
        ),
        Mistake(
            "impatient",
            "Look again and again until this rank's time is over.",
            "It gave up before its time was over.",
            shows=_gives_up_early,
        ),
        Mistake(
            "alone",
            "While it waits, a rank must also look whether another one has decided.",
            "Another rank had decided, and it waited until its own time was over.",
            shows=_in_a_turn(_goes_on_alone),
        ),
        Mistake(
            "deadlock",
            "Some ranks began the all-reduce, and others did not: they decided apart. Let one "
            "decision in the store count for all, written by compare_set: between a look and a set "
            "another rank may decide.",
        ),
        Mistake(
            "raised",
            "A line that is named is yours. Perhaps it waits: store.get and store.wait raise when "
            "a key does not come. store.check only asks, and takes a list of keys. Or it began an "
            "all-reduce before all had come: that cannot be taken back.",
        ),
        Mistake(
            "forbidden",
            "The only call to the other ranks is one all_reduce, when all have come. All else goes "
            "through the store.",
        ),
    ),
    allowed=("all_reduce",),
    extra_time_s=7.5,
    in_place=True,
)
