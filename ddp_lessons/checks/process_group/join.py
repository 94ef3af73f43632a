"""
Exercise 01: how strangers become a group.

Legend: rank r of w. An answer to 01.1 or 01.3 is called in no group, one to 01.2 in a new group.
"""

import time
from datetime import timedelta
from unittest.mock import Mock

import torch
import torch.distributed as dist

from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.checks.kit.replacing import replacing
from ddp_lessons.pictures import collective_picture, holdings_picture
from ddp_lessons.process_group import join_group, leave_group

# ---- 01.1 join a group ----

_TIMEOUT = timedelta(seconds=2)


def _join_cases(draw):
    yield Case(4, {"path": "first"}, seed=0)
    for world_size in draw.sample((1, 2, 3), 3):
        yield Case(world_size, {"path": f"store-{world_size}-{draw.randint(100, 999)}"})


def _join_act(here, join):
    path = here.folder / here["path"]
    has_left = Mock()  # not at once: a rank that leaves while others still join takes them along
    try:
        # An answer that waits for ranks that do not come must not wait for half an hour.
        with (
            replacing(dist.distributed_c10d, default_pg_timeout=_TIMEOUT),
            replacing(dist, destroy_process_group=has_left),
        ):
            here.call(join, str(path), here.rank, here.world_size)
        if not dist.is_initialized() or has_left.called:
            return {"is_joined": False}
        total = torch.tensor([10**here.rank])
        dist.all_reduce(total)
        dist.barrier()
        return {
            "is_joined": True,
            "rank": dist.get_rank(),
            "world_size": dist.get_world_size(),
            "file_bytes": path.stat().st_size if path.is_file() else None,
            "total": total.item(),
        }
    finally:
        if not path.exists():
            path.touch()  # a FileStore without its file looks for it for 300 s before it is gone
        leave_group()


def _join_judge(played):
    w = played.case.world_size
    for seen in played.seen:
        kept, rank = seen.kept, seen.rank
        if not kept["is_joined"]:
            fact = "After it, this rank is in no group."
            raise played.wrong("not-joined", rank, fact=fact)
        if kept["world_size"] != w:
            fact = f"Its group has {kept['world_size']} of {w} ranks."
            raise played.wrong("alone", rank, fact=fact)
        if kept["rank"] != rank:
            fact = f"In its group it has rank {kept['rank']}."
            raise played.wrong("other-rank", rank, fact=fact)
        if not kept["file_bytes"]:
            is_gone = kept["file_bytes"] is None
            fact = (
                f"The ranks met, but the file at `path` is {'not there' if is_gone else 'empty'}."
            )
            raise played.wrong("other-store", rank, fact=fact)
        if kept["total"] != sum(10**r for r in range(w)):
            both = {"got": kept["total"], "expected": sum(10**r for r in range(w))}
            raise played.wrong("values", rank, **both, fact="An all-reduce gave another sum.")


def _join_draw(played):
    names = ("rank", "world_size", "total")
    held = [{name: str(seen.kept[name]) for name in names} for seen in played.seen]
    return holdings_picture(names, held)


join = Task(
    number="01.1",
    name="join",
    cases=_join_cases,
    act=_join_act,
    judge=_join_judge,
    ok="every rank has its own number, and all meet in the file",
    draw=_join_draw,
    hints=(
        "A group needs three things: a rank, a world size and a store. Two of them are given.",
        "The store is a file at `path`. dist.FileStore makes one, and an address that begins with "
        "file:// does too.",
        "dist.init_process_group takes the backend, then store=... or init_method=..., and rank "
        "and world_size by their names.",
        'dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, and so on.',
    ),
    mistakes={
        "not-joined": "A store alone makes no group: call dist.init_process_group, and stay in.",
        "alone": "Pass the world size that the function is given, so that it waits for all ranks.",
        "other-rank": "Pass the rank that the function is given.",
        "other-store": "Use the file at `path`, which is new, and leave it there: another one may "
        "be left from an earlier group.",
        "values": "The ranks are in a group, but its messages do not arrive. Some backends only "
        "play one, for tests.",
        "raised": "If it waited in vain, ranks did not meet: each needs its own rank, all the same "
        "world size and the same file, which nobody removes or empties. If torch knows no "
        "handler: it takes an address, file:// and the path, or a store, and got a bare path.",
    },
    returns=False,
    in_group=False,
)

# ---- 01.2 even and odd subgroups ----


def _parity_cases(draw):
    yield Case(2, {}, seed=0)  # groups of one rank: what is out of step shows without a deadlock
    yield Case(2, {}, seed=1)  # for groups that are kept: with more ranks, new ones would wait
    yield Case(4, {}, seed=0)
    yield Case(3, {}, seed=draw.randint(1, 10**6))


def _expected_ranks(rank, world_size):
    return list(range(rank % 2, world_size, 2))


def _parity_act(here, even_and_odd):
    # A group of its own for each case: numbers of groups that only some ranks make are not left.
    join_group(
        here.folder / f"world-{here.case.seed}-{here.world_size}", here.rank, here.world_size
    )
    try:
        return _parity_kept(here, even_and_odd)
    finally:
        leave_group()


def _parity_kept(here, even_and_odd):
    before = dist.distributed_c10d._world.group_count
    group = here.call(even_and_odd)
    kept: dict = {"num_made": dist.distributed_c10d._world.group_count - before}
    if isinstance(group, dist.ProcessGroup):
        kept["is_gone"] = group not in dist.distributed_c10d._world.pg_map
    if not kept.get("is_gone", True):
        kept |= {"ranks": dist.get_process_group_ranks(group), "name": group.group_name}
    kept["is_member"] = group is not dist.GroupMember.NON_GROUP_MEMBER
    everyone: list = [None] * here.world_size
    dist.all_gather_object(everyone, kept)
    names = {(one.get("name"), *one.get("ranks", ())) for one in everyone}
    is_right = len({name for name, *_ in names}) == len(names) == 2 and all(
        one.get("ranks") == _expected_ranks(r, here.world_size) for r, one in enumerate(everyone)
    )
    if is_right:  # others would wait for ranks that are elsewhere
        total = torch.tensor([10**here.rank])
        dist.all_reduce(total, group=group)
        kept["total"] = total.item()
    dist.barrier()
    return kept


def _parity_judge(played):
    w, kept = played.case.world_size, [seen.kept for seen in played.seen]
    for rank, own in enumerate(kept):
        if not own["is_member"]:
            fact = "It returned a group that this rank is not in."
            raise played.wrong("not-member", rank, fact=fact)
        if own.get("is_gone"):
            fact = "It returned a group that was made in an earlier call, and is gone since."
            raise played.wrong("old-group", rank, fact=fact)
        if "ranks" not in own:
            got = played.results[rank]
            raise played.wrong("no-group", rank, got=got, fact="It must return a group.")
    numbered = [(own["name"], own["ranks"]) for own in kept]
    for rank, (name, ranks) in enumerate(numbered):
        others = [other for other, (same, theirs) in enumerate(numbered)
                  if same == name and theirs != ranks]  # fmt: skip
        if others:
            fact = (
                f"The groups of rank {rank} and of rank {others[0]} have the same number, {name}, "
                "and are not the same group."
            )
            mistake = "own-only" if kept[rank]["num_made"] < 2 else "order"
            raise played.wrong(mistake, rank, fact=fact)
    for rank, own in enumerate(kept):
        expected = _expected_ranks(rank, w)
        if own["ranks"] != expected:
            fact = "These are the ranks of its group."
            both = {"got": own["ranks"], "expected": expected}
            raise played.wrong("other-ranks", rank, **both, fact=fact)
    for rank, (name, ranks) in enumerate(numbered):
        other = next(other for other, (_, theirs) in enumerate(numbered) if theirs == ranks)
        if name != numbered[other][0]:
            fact = (
                f"Ranks {other} and {rank} returned two groups of the same ranks, with the numbers "
                f"{numbered[other][0]} and {name}."
            )
            raise played.wrong("not-shared", rank, fact=fact)
    for rank, own in enumerate(kept):
        if own["num_made"] != kept[0]["num_made"]:
            fact = (
                f"Rank {rank} has counted {own['num_made']} calls of new_group and rank 0 "
                f"{kept[0]['num_made']}, so the next groups will have other numbers."
            )
            raise played.wrong("out-of-step", rank, fact=fact)
    if kept[0]["num_made"] > 2:
        fact = f"Each rank has counted {kept[0]['num_made']} calls of new_group; 2 are enough."
        raise played.wrong("too-many", fact=fact)
    for rank, own in enumerate(kept):
        total = sum(10**r for r in _expected_ranks(rank, w))
        if own["total"] != total:
            both = {"got": own["total"], "expected": total}
            raise played.wrong("values", rank, **both, fact="Its sum is that of other ranks.")


def _parity_draw(played):
    before = [[10**seen.rank] for seen in played.seen]
    return collective_picture("sum in subgroup", before, [[s.kept["total"]] for s in played.seen])


even_and_odd = Task(
    number="01.2",
    uses_store=True,
    name="even_and_odd",
    cases=_parity_cases,
    act=_parity_act,
    judge=_parity_judge,
    ok="each rank in the group of its parity, and no two groups of one number",
    draw=_parity_draw,
    in_group=False,
    draws_case=2,
    hints=(
        "dist.new_group takes a list of ranks and returns their group.",
        "Every rank calls it for every group, in the same order: torch numbers groups by counting "
        "the calls.",
        "Make both groups first. Then choose the one to return by dist.get_rank() % 2.",
        "even = dist.new_group(list(range(0, world_size, 2))) is the first of two such lines; no "
        "line stands under an if.",
    ),
    mistakes={
        "own-only": "Every rank must call new_group for both groups, also for the one of others.",
        "order": "Make the two groups in the same order on every rank.",
        "out-of-step": "Every rank must make the same calls of new_group, also for groups that it "
        "is not in, and no other rank may make one more.",
        "not-shared": "All ranks of a group must return the one that they made in the same call.",
        "too-many": "Make each of the two groups once, however many ranks there are.",
        "not-member": "Return the group that this rank is in: choose by its rank.",
        "no-group": "Return what dist.new_group gave you.",
        "other-ranks": "Even ranks are 0, 2, 4 and so on, odd ones 1, 3, 5, below the world size.",
        "old-group": "A group ends with the world that it was made in. Make both anew in each "
        "call.",
        "deadlock": "All ranks must make the same calls in the same order, and those of a subgroup "
        "must hold one and the same: make each of the two once.",
        "raised": "A line that is named is yours. Perhaps it needs 4 ranks, or an even number: ask "
        "dist.get_world_size().",
    },
)

# ---- 01.3 name the missing ranks ----

_LATE_S, _SLACK_S, _SET_S = 0.3, 2.0, 0.03
_TOO_LATE_S = 0.5  # after the deadline, or 1 s, as a FileStore waits so long at least


def _missing_cases(draw):
    yield Case(4, {"absent": [1], "late": [], "too late": [3], "deadline_s": 0.9}, seed=0)
    yield Case(1, {"absent": [], "late": [], "deadline_s": 0})
    yield Case(3, {"absent": [2], "late": [], "too late": [1], "deadline_s": 0})
    yield Case(draw.choice((2, 3)), {"absent": [], "late": [], "deadline_s": 2.5})
    late = draw.randint(1, 3)
    yield Case(4, {"absent": [], "late": [late], "deadline_s": 2.5})
    absent = sorted(draw.sample(range(4), 2))
    yield Case(4, {"absent": absent, "late": [], "deadline_s": 0.3})


class _SlowStore(dist.FileStore):
    # Who reads a list, adds to it and writes it back takes away what others wrote meanwhile.
    def set(self, key, value):
        time.sleep(_SET_S)
        super().set(key, value)


def _missing_act(here, missing):
    if here.rank in here["absent"]:
        return None
    store = _SlowStore(str(here.folder / f"roll-{here.case.seed}"), here.world_size)
    store.set_timeout(timedelta(seconds=1))  # for an answer that waits for a key in vain
    if here.rank in here["late"]:
        time.sleep(_LATE_S)
    watch = dist.FileStore(str(here.folder / f"watch-{here.case.seed}"), here.world_size)
    if here.rank in _too_late(here.case):
        _come_too_late(here, watch)
    start_s = time.monotonic()
    watch.set(f"began/{here.rank}", str(start_s))
    here.call(missing, store, here.rank, here.world_size, here["deadline_s"])
    took_s = time.monotonic() - start_s
    watch.set(f"ended/{here.rank}", "yes")
    return took_s


def _too_late(case):
    return case.data.get("too late", [])


def _come_too_late(here, watch):
    """
    Wait until the others have returned, or should have.
    """
    away = (*here["absent"], *_too_late(here.case))
    others = [rank for rank in range(here.world_size) if rank not in away]
    began_s = [float(watch.get(f"began/{rank}")) for rank in others]
    until_s = max(began_s) + max(here["deadline_s"], 1) + _TOO_LATE_S
    while time.monotonic() < until_s and not watch.check([f"ended/{rank}" for rank in others]):
        time.sleep(0.01)


def _missing_judge(played):
    w, away, too_late = played.case.world_size, played.case["absent"], _too_late(played.case)
    present = [rank for rank in range(w) if rank not in away]
    results = {rank: played.seen[rank].calls[-1].result for rank in present}
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
        has_waited = played.seen[rank].kept >= played.case["deadline_s"]
        if rank in got and ({*present} - {*too_late} <= {*got} or not has_waited):
            raise played.wrong("unsaid", rank, **both, fact="It names a rank that has come.")
        if {*got} == {*absent}:
            fact = "The ranks are not in rising order, each once."
            raise played.wrong("order", rank, **both, fact=fact)
        if len(got) == len(absent):
            fact = "It names as many ranks as are missing, and others."
            raise played.wrong("other-ranks", rank, **both, fact=fact)
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
        took_s, deadline_s = played.seen[rank].kept, played.case["deadline_s"]
        if not missed[rank] and took_s >= deadline_s > 0:
            fact = "All ranks had come, and it waited until the deadline."
            raise played.wrong("slow", rank, fact=fact)
        if missed[rank] and took_s < 0.9 * deadline_s:
            fact = "It gave up before the deadline was over."
            raise played.wrong("impatient", rank, fact=fact)
        if took_s > deadline_s + _SLACK_S:
            fact = f"The deadline was {deadline_s:g} s, and it took over {_SLACK_S:g} s more."
            raise played.wrong("too-patient", rank, fact=fact)


def _missing_draw(played):
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
    cases=_missing_cases,
    act=_missing_act,
    judge=_missing_judge,
    ok="named at the deadline, and at once when all had come",
    draw=_missing_draw,
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
        "lost": "Leave a note under a key of this rank alone. Who reads a list and writes it back "
        "takes away what others have written meanwhile.",
        "withdrawn": "Leave the note in the store when you return: a rank that comes later looks "
        "for it.",
        "too-patient": "The deadline begins with the call, and there is one for all ranks "
        "together, not one for each.",
        "impatient": "Leave this rank's note, look, and then ask the time: until the deadline is "
        "over, look again, as a rank may still come.",
        "nobody": "Return all ranks whose keys are not there when the time is over.",
        "slow": "Return as soon as all keys are there.",
        "raised": "A line that is named is yours. Perhaps it waits: store.get and store.wait raise "
        "when a key does not come. store.check only asks, and takes a list of keys.",
        "late": "Look at the clock as often as for the keys, and end when the time is over. To "
        "store.wait, a timeout of 0 means none: it waits for ever.",
    },
    in_group=False,
)
