"""
Task 01.2: even and odd subgroups.
"""

import torch
import torch.distributed as dist

from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.pictures import collective_picture
from ddp_lessons.process_group import join_group, leave_group


def _cases(draw):
    yield Case(2, {}, seed=0)  # groups of one rank: what is out of step shows without a deadlock
    yield Case(2, {}, seed=1)  # for groups that are kept: with more ranks, new ones would wait
    yield Case(4, {}, seed=0)
    yield Case(3, {}, seed=draw.randint(1, 10**6))


def _expected_ranks(rank, world_size):
    return list(range(rank % 2, world_size, 2))


def _act(here, even_and_odd):
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


def _judge(played):
    w, kept = played.case.world_size, [seen.kept for seen in played.seen]
    for rank, own in enumerate(kept):
        if not own["is_member"]:
            theirs = [one.get("ranks", []) for one in kept[rank % 2 :: 2]]
            lacking = [ranks for ranks in theirs if ranks and rank not in ranks]
            if lacking and {*lacking[0]} < {*_expected_ranks(rank, w)}:
                fact = f"Rank {rank} is not in the group of rank {lacking[0][0]}."
                both = {"got": lacking[0], "expected": _expected_ranks(rank, w)}
                raise played.wrong("other-ranks", lacking[0][0], **both, fact=fact)
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
            raise played.wrong("values", rank, **both, fact="An all-reduce in it gave another sum.")


def _draw(played):
    before = [[10**seen.rank] for seen in played.seen]
    return collective_picture("sum in subgroup", before, [[s.kept["total"]] for s in played.seen])


even_and_odd = Task(
    number="01.2",
    uses_store=True,
    name="even_and_odd",
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="each rank in the group of its parity, and no two groups of one number",
    draw=_draw,
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
        "values": "The groups are right, but their messages do not arrive. Some backends only play "
        "one, for tests.",
        "old-group": "A group ends with the world that it was made in. Make both anew in each "
        "call.",
        "deadlock": "All ranks must make the same calls in the same order, and those of a subgroup "
        "must hold one and the same: make each of the two once.",
        "raised": "A line that is named is yours. Perhaps it needs 4 ranks, or an even number: ask "
        "dist.get_world_size().",
    },
)
