"""
Task 01.2: even and odd subgroups.

On each rank: `_act`, `_parity_kept`; in both: `_expected_ranks`. In the kernel: the rest.
"""

from dataclasses import replace

import torch
import torch.distributed as dist

from ddp_lessons.checks.kit import VALUES, Case, Expected, Mistake, Task
from ddp_lessons.pictures import collective_picture
from ddp_lessons.private import process_groups
from ddp_lessons.process_group import join_group, leave_group


def _cases(draw):
    yield Case(2, {}, seed=0)  # groups have one rank each, so mistakes show without a deadlock
    # Find answers that keep groups from the case above. In a larger world, ranks that were not in
    # that case would block.
    yield Case(2, {}, seed=1)
    yield Case(4, {}, seed=0)
    yield Case(3, {}, seed=draw.randint(1, 10**6))


def _expected_ranks(rank, world_size):
    return list(range(rank % 2, world_size, 2))


def _act(context, even_and_odd):
    # Each case has its own default group. torch then counts groups anew, so ranks whose counts
    # differ after one case do not disturb the next one.
    join_group(
        context.folder / f"world-{context.case.seed}-{context.world_size}",
        context.rank,
        context.world_size,
    )
    try:
        return _parity_kept(context, even_and_odd)
    finally:
        leave_group()


def _parity_kept(context, even_and_odd):
    before = process_groups.group_count()
    group = context.call(even_and_odd)
    kept: dict = {"num_made": process_groups.group_count() - before}
    if isinstance(group, dist.ProcessGroup):
        kept["is_gone"] = not process_groups.is_alive(group)
    if not kept.get("is_gone", True):
        kept |= {"ranks": dist.get_process_group_ranks(group), "name": group.group_name}
    kept["is_member"] = group is not dist.GroupMember.NON_GROUP_MEMBER
    everyone: list = [None] * context.world_size
    dist.all_gather_object(everyone, kept)
    names = {(one.get("name"), *one.get("ranks", ())) for one in everyone}
    is_right = len({name for name, *_ in names}) == len(names) == 2 and all(
        one.get("ranks") == _expected_ranks(r, context.world_size) for r, one in enumerate(everyone)
    )
    if is_right:  # in wrong groups, an all-reduce could block
        total = torch.tensor([10**context.rank])
        dist.all_reduce(total, group=group)
        kept["total"] = total.item()
    dist.barrier()
    return kept


def _has_other_ranks(view):
    expected = _expected_ranks(view.rank, view.case.world_size)
    ranks = view.output.get("ranks", expected)
    return ranks != expected and f"Its group has the ranks {ranks}, and {expected} are expected."


def _others(view, field):
    """
    Return a rank in another group that has the same `field` as this rank's group, or None.

    The field is "name" or "ranks".
    """
    own, both = view.output, ("name", "ranks")
    for rank, other in enumerate(seen.output for seen in view.case_result.seen):
        is_same = "ranks" in other and "ranks" in own and other[field] == own[field]
        if is_same and any(other[name] != own[name] for name in both):
            return rank
    return None


def _shares_a_number(view):
    other = _others(view, "name")
    return other is not None and (
        f"The groups of rank {view.rank} and of rank {other} have the same number, "
        f"{view.output['name']}, and are not the same group."
    )


def _has_a_group_apart(view):
    other = _others(view, "ranks")
    return other is not None and (
        f"Ranks {view.rank} and {other} returned two groups of the same ranks, with other numbers."
    )


def _counts_apart(view):
    own, first = (seen.output["num_made"] for seen in (view.seen, view.case_result.seen[0]))
    return own != first and (
        f"Rank {view.rank} has counted {own} calls of new_group and rank 0 {first}, so the next "
        "groups will have other numbers."
    )


def _draw(case_result):
    before = [[10**seen.rank] for seen in case_result.seen]
    return collective_picture(
        "sum in subgroup", before, [[s.output["total"]] for s in case_result.seen]
    )


even_and_odd = Task(
    number="01.2",
    uses_store=True,
    name="even_and_odd",
    cases=_cases,
    act=_act,
    ok="each rank in the group of its parity, and no two groups of one number",
    draw=_draw,
    in_group=False,
    draws_case=2,
    hints=(
        "dist.new_group takes a list of ranks, and returns their group.",
        "Every rank calls dist.new_group for every group, in the same order, because each rank "
        "counts its calls.",
        "Create both groups first. Then choose the one to return by dist.get_rank() % 2.",
        "even = dist.new_group(list(range(0, world_size, 2))) is the first of two such lines. "
        "Neither stands under an if.",
    ),
    expected=Expected(
        lambda case, rank: sum(10**r for r in _expected_ranks(rank, case.world_size)),
        gave=lambda view: view.output.get("total"),
    ),
    mistakes=(
        Mistake(
            "old-group",
            "A subgroup ends with the default group in which it was created. Create both in each "
            "call.",
            "It returned a group of an earlier call, which has ended since.",
            shows=lambda view: view.output.get("is_gone", False),
        ),
        Mistake(
            "no-group",
            "Return the group that this rank is in, as dist.new_group returned it.",
            shows=lambda view: (
                view.output["is_member"]
                and "ranks" not in view.output
                and f"It must return a group (got {view.case_result.results[view.rank]})."
            ),
        ),
        Mistake(
            "other-ranks",
            "The even ranks are 0, 2, 4 and so on, and the odd ranks are 1, 3, 5 and so on, below "
            "the world size.",
            shows=_has_other_ranks,
        ),
        Mistake(
            "not-member",
            "Return the group that this rank is in: choose by its rank.",
            "It returned a group that this rank is not in.",
            shows=lambda view: not view.output["is_member"],
        ),
        Mistake(
            "own-only",
            "Every rank must call new_group for both groups, also for the group that the rank is "
            "not in.",
            shows=lambda view: view.output["num_made"] < 2 and _shares_a_number(view),
        ),
        Mistake(
            "order",
            "Create the two groups in the same order on every rank.",
            shows=_shares_a_number,
        ),
        Mistake(
            "not-shared",
            "All ranks of a group must return the group that they created in the same call.",
            shows=_has_a_group_apart,
        ),
        Mistake(
            "out-of-step",
            "Every rank must make the same calls of new_group, also for groups that the rank is "
            "not in, and no rank may make one call more than the others.",
            shows=_counts_apart,
        ),
        Mistake(
            "too-many",
            "Create each of the two groups once, no matter how many ranks there are.",
            shows=lambda view: (
                view.output["num_made"] > 2
                and f"It has counted {view.output['num_made']} calls of new_group; 2 are enough."
            ),
        ),
        replace(
            VALUES,
            hint="The groups are right, but their messages do not arrive. Some backends, such as "
            "`fake`, move no data: they are for tests.",
            symptom="An all-reduce in the group gave another sum.",
        ),
        Mistake(
            "deadlock",
            "All ranks must make the same calls of new_group in the same order, and the members of "
            "a subgroup must return the same group: create each of the two groups once.",
        ),
        Mistake(
            "raised",
            "If the message names a line, it is a line of your function. The line may work only "
            "for 4 ranks, or for an even number of ranks: ask dist.get_world_size().",
        ),
    ),
)
