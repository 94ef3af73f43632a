"""
Task 10.2: a timeout that names who is missing.
"""

import time
from datetime import timedelta

import torch.distributed as dist

from ddp_lessons.checks.kit import Case, Task, equal, whole_numbers
from ddp_lessons.checks.kit.inside.own_time import tell_end, tell_process, timed, wait_for_ends
from ddp_lessons.checks.kit.inside.plain import plain
from ddp_lessons.pictures import holdings_picture

_LATE_S, _LATER_S, _SLACK_S, _TOO_LATE_S = 0.2, 1.5, 1.2, 0.7
_SHORT_S, _LONG_S = 1.0, 3.1
_PATIENT_S = 2.5  # so long that one more of it is beyond the slack, also after _LATER_S
_WAITED_S = 0.3
_NEARLY = 0.8  # of a limit: who waited until it was over waited for this, less waits for a core
_SETS_S = 0.3  # of a slow store
_LENGTH = 3


def _cases(draw):
    yield Case(4, {"too late": [2], "hurried": [0, 1]}, seed=0)
    yield Case(1, {})
    yield Case(draw.choice((2, 3)), {})
    yield Case(4, {"late": [draw.randrange(4)]})
    hurried, late = draw.sample(range(1, 4), 2)  # who looks past rank 0 has another mistake
    yield Case(4, {"too late": [late], "hurried": [hurried], "slow store": True})
    yield Case(4, {"too late": [late], "hurried": [hurried], "calls": 2})
    other, hurried = draw.sample(range(1, 4), 2)
    (late,) = {1, 2, 3} - {other, hurried}  # whoever comes gives no rank more time
    what = {"absent": [0, other], "late": [late], "hurried": [hurried]}
    yield Case(4, what | {"limit": _PATIENT_S, "late by": _LATER_S})


def _ranks(case, what):
    return case.data.get(what, [])


def limit_of(case, rank):
    """
    Return the seconds that a rank is given.
    """
    short_s = case.data.get("limit", _SHORT_S)
    return short_s if rank in _ranks(case, "hurried") else short_s - _SHORT_S + _LONG_S


class _SlowStore(dist.FileStore):
    """
    Take a while to set a key, but for the first one of a rank, its own note.

    Args:
        file: The store's file.
        on_set: Function that is called when such a key is about to be set.
    """

    def __init__(self, file, on_set):
        super().__init__(file)
        self._on_set, self._num_set = on_set, 0

    def set(self, key, value):
        self._num_set += 1
        if self._num_set > 1:
            self._on_set()
            time.sleep(_SETS_S)
        super().set(key, value)


def _act(here, answer):
    case, rank = here.case, here.rank
    file = str(here.folder / f"calls-{case.seed}-{here.world_size}")
    watch = dist.FileStore(str(here.folder / f"watch-{case.seed}-{here.world_size}"))
    tell_process(watch, rank)
    is_slow = "slow store" in case.data
    # The rank that is too late comes when another one is about to write what it has decided.
    store = _SlowStore(file, lambda: tell_end(watch, rank)) if is_slow else dist.FileStore(file)
    store.set_timeout(timedelta(seconds=3))  # for an answer that waits for a key in vain
    num_calls, took = case.data.get("calls", 1), []
    for number in range(1, num_calls + 1):
        is_last = number == num_calls
        tensor = _numbers(case, rank, number).to(here.device)
        dist.barrier()
        if is_last and rank in _ranks(case, "absent"):
            break
        if is_last and rank in _ranks(case, "late"):
            time.sleep(case.data.get("late by", _LATE_S))
        if is_last and rank in _ranks(case, "too late"):
            # Until a hurried rank has given this one up, or should have.
            wait_for_ends(watch, _ranks(case, "hurried"), _SHORT_S + _TOO_LATE_S)
        with timed(took):
            here.call(answer, tensor, store, number, limit_of(case, rank))
        if is_last:
            tell_end(watch, rank)
    return took


def _numbers(case, rank, number):
    return whole_numbers(case, f"{rank} {number}", (_LENGTH,))


def _judge(played):
    case, w = played.case, played.case.world_size
    num_calls = case.data.get("calls", 1)
    for number in range(1, num_calls + 1):
        is_last = number == num_calls
        away = {*_ranks(case, "absent"), *_ranks(case, "too late")} if is_last else set()
        present = [r for r in range(w) if not is_last or r not in _ranks(case, "absent")]
        calls = {rank: played.seen[rank].calls[number - 1] for rank in present}
        took = {rank: played.seen[rank].kept[number - 1] for rank in present}
        if away:
            _judge_patience(played, calls, took, away)
        for rank in present:
            _judge_list(played, rank, calls[rank].result, sorted(away))
        total = sum(_numbers(case, rank, number) for rank in range(w))
        for rank in present:
            _judge_tensor(played, rank, calls[rank], total if not away else None)
        for rank in present:
            _judge_time(played, rank, took, away if is_last else set())


def _judge_patience(played, calls, took, away):
    """
    Refuse who was hurried, and waited until the one came that is too late.
    """
    for rank in _ranks(played.case, "hurried"):
        limit_s, (_, own_s) = limit_of(played.case, rank), took[rank]
        looked_s = own_s - _in_sums_s(calls[rank])
        if calls[rank].result == [] and looked_s > limit_s + _WAITED_S:
            both = {"got": [], "expected": sorted(away)}
            fact = f"Its limit was {limit_s:g} s, and it waited for longer."
            raise played.wrong("too-patient", rank, **both, fact=fact)


def _in_sums_s(call):
    # Who begins one too early waits in it for the one that is too late.
    ends = [(event, event.wait_end_ns or event.end_ns) for event in call.events]
    return sum(end - event.start_ns for event, end in ends if event.is_communication and end) / 1e9


def _judge_list(played, rank, got, missing):
    both = {"got": got, "expected": missing}
    if not isinstance(got, list) or any(type(one) is not int for one in got):
        raise played.wrong("no-list", rank, **both, fact="It must return a list of ranks.")
    if got == missing:
        return
    if sorted({*got}) == missing:
        fact = "The ranks are not in rising order, each once."
        raise played.wrong("order", rank, **both, fact=fact)
    if not got and "calls" in played.case.data:
        fact = "In the second call, it takes ranks for present that came to the first one."
        raise played.wrong("old-keys", rank, **both, fact=fact)
    if rank in _ranks(played.case, "too late"):
        fact = f"Rank {rank} came when others had given it up, and returns another list than they."
        raise played.wrong("other-list", rank, **both, fact=fact)
    if {*missing} - {*got}:
        fact = "It does not name all that did not come."
        raise played.wrong("nobody", rank, **both, fact=fact)
    fact = "It names a rank that had come."
    raise played.wrong("came", rank, **both, fact=fact)


def _judge_tensor(played, rank, call, total):
    before, after = call.before[0], call.after[0]
    num_sums = sum(event.name == "all_reduce" for event in call.events)
    both = {"got": after, "expected": before if total is None else total}
    if total is None and num_sums:
        fact = "Not all ranks had come, and it began an all-reduce."
        raise played.wrong("touched", rank, fact=fact)
    if total is None and not equal(before, after):
        fact = "Not all ranks had come, and `tensor` is not as it was."
        raise played.wrong("touched", rank, **both, fact=fact)
    if total is not None and not equal(after, plain(total)):
        fact = "All ranks had come, and `tensor` does not hold the sum."
        raise played.wrong("no-sum", rank, **both, fact=fact)
    if total is not None and num_sums != 1:
        fact = f"It made {num_sums} all-reduces in a call."
        raise played.wrong("no-sum", rank, fact=fact)


def _judge_time(played, rank, took, away):
    case, limit_s, (_, own_s) = played.case, limit_of(played.case, rank), took[rank]
    if not away and own_s >= _NEARLY * limit_s:
        fact = "All ranks had come, and it waited until its time was over."
        raise played.wrong("slow", rank, fact=fact)
    if away and rank not in away and rank in _ranks(case, "hurried"):
        # One that began later finds the verdict of one whose time is over.
        longest_s = max(took[r][0] for r in _ranks(case, "hurried") if r not in away)
        if longest_s < 0.9 * limit_s:
            raise played.wrong("impatient", rank, fact="It gave up before its time was over.")
        if own_s > limit_s + _SLACK_S:
            fact = f"Its limit was {limit_s:g} s, and it took over {_SLACK_S:g} s more."
            raise played.wrong("too-patient", rank, fact=fact)
    if away and rank not in _ranks(case, "hurried") and own_s >= _NEARLY * limit_s:
        fact = "Another rank had decided, and it waited until its own time was over."
        raise played.wrong("alone", rank, fact=fact)


def _draw(played):
    held = [
        {"limit": f"{limit_of(played.case, rank)} s", "missing": str(result)}
        for rank, result in enumerate(played.results)
    ]
    return holdings_picture(["limit", "missing"], held)


sum_or_missing = Task(
    number="10.2",
    name="sum_or_missing",
    cases=_cases,
    act=_act,
    judge=_judge,
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
    mistakes={
        "no-list": "Return a list of ranks; an empty one if all have come.",
        "order": "Return the ranks in rising order, each once.",
        "nobody": "Return all ranks that had left no key when the time was over.",
        "old-keys": "Keys stay in the store: put `number` into each of them.",
        "came": "Each rank must leave a key of its own first, and look for it anew in each turn of "
        "the loop, until its time is over.",
        "other-list": "A rank that comes late must find what the others have decided. Leave the "
        "decision in the store by compare_set, which looks and writes in one act, and have every "
        "rank go by what it returns.",
        "touched": "Begin the all-reduce, and change the tensor, only when the decision says that "
        "all have come.",
        "no-sum": "When all have come, add up over the group, in place, by one all_reduce.",
        "slow": "Return as soon as all keys are there.",
        "impatient": "Look again and again until this rank's time is over.",
        "too-patient": "The limit counts from the call, and there is one for all other ranks "
        "together, not one for each. store.check only asks. store.get and store.wait wait, even "
        "for longer than they are told, and see no decision of others meanwhile.",
        "alone": "While it waits, a rank must also look whether another one has decided.",
        "deadlock": "Some ranks began the all-reduce, and others did not: they decided apart. Let "
        "one decision in the store count for all, written by compare_set: between a look and a set "
        "another rank may decide.",
        "raised": "A line that is named is yours. Perhaps it waits: store.get and store.wait raise "
        "when a key does not come. store.check only asks, and takes a list of keys. "
        "Or it began an all-reduce before all had come: that cannot be taken back.",
        "forbidden": "The only call to the other ranks is one all_reduce, when all have come. All "
        "else goes through the store.",
    },
    allowed=("all_reduce",),
    waits_s=7.5,
    in_place=True,
)
