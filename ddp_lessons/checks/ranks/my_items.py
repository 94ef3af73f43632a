"""
Task 00.1: distribute the items of a list to the ranks.

On each rank: `_act`; in both: `_others`. In the kernel: the rest.
"""

from collections import Counter

from ddp_lessons.checks.kit import VALUES, Case, Expected, Mistake, Task
from ddp_lessons.pictures import holdings_picture


def _cases(draw):
    yield Case(4, {"items": list(range(10, 22))}, seed=0)
    for world_size in (1, 2, 3, 4):
        start, length = draw.randint(0, 90), draw.randint(5, 13)
        yield Case(world_size, {"items": list(range(start, start + length))})
    yield Case(3, {"items": [7]})
    yield Case(2, {"items": []})
    # Items that do not rise, and that occur twice. In an `if`, 0 and the empty text count as false.
    yield Case(2, {"items": ["b", "a", "a", "", "b", "a", "c"]})
    yield Case(2, {"items": [0, 7, 0, 3]})


def _act(context, my_items):
    context.call(my_items, _others(context["items"]))
    context.call(my_items, list(context["items"]))


def _others(items):
    # Return as many other numbers: an answer that keeps items of this list is wrong for the next.
    return [item + 100 if isinstance(item, int) else item for item in items]


def _share(case, rank):
    return case["items"][rank :: case.world_size]


def _block(case, rank):
    length = -(-len(case["items"]) // case.world_size)
    return case["items"][rank * length :][:length]


def _draw(case_result):
    shares = [", ".join(map(str, seen.calls[1].result)) for seen in case_result.seen]
    return holdings_picture(["my items"], [{"my items": share} for share in shares])


my_items = Task(
    number="00.1",
    name="my_items",
    twice=True,
    cases=_cases,
    act=_act,
    ok="each item on exactly one rank, without a message",
    draw=_draw,
    hints=(
        "All ranks run the same line. Their answers differ because their ranks differ.",
        "If there are 4 ranks, rank 0 takes the items at the positions 0, 4, 8 and so on, and "
        "rank 1 those at 1, 5, 9 and so on.",
        "A slice has a start and a step: items[start::step].",
        "The start is dist.get_rank(), the step is dist.get_world_size().",
    ),
    expected=Expected(_share),
    mistakes=(
        Mistake(
            "no-list",
            "Return a list, because items is a list.",
            "It must return a list.",
            shows=lambda view: not isinstance(view.got, list),
        ),
        Mistake(
            "all-items",
            "Every rank must leave most items to the others: use its rank.",
            "This rank took every item.",
            gives=lambda case, rank: [case["items"]],
        ),
        Mistake(
            "left-out",
            "An item may be 0, or a text without letters, which count as false. Take all of them.",
            "This rank's items that count as false are missing.",
            gives=lambda case, rank: [[item for item in _share(case, rank) if item]],
        ),
        Mistake(
            "fixed-size",
            "Ask how many ranks there are, and ask inside the function: the number is not always "
            "4. A call at the top of the cell was made when there were 4 ranks.",
            "These would be the items of this rank among 4 ranks.",
            gives=lambda case, rank: [case["items"][rank::4]],
        ),
        Mistake(
            "short",
            "The last items are missing: do not cut shares to one length.",
            "This rank's last item is missing.",
            gives=lambda case, rank: [_share(case, rank)[: len(case["items"]) // case.world_size]],
        ),
        Mistake(
            "by-value",
            "Choose items by their positions: a list may hold an item twice, items may be texts, "
            "and they need not be sorted.",
            "These are not the items at this rank's positions in the list.",
            shows=lambda view: view.is_off and "a" in view.case["items"],
        ),
        Mistake(
            "order",
            "Keep the items in the order of the list.",
            "The items are out of order.",
            shows=lambda view: view.is_off and Counter(view.got) == Counter(view.expected),
        ),
        Mistake(
            "block",
            "With w ranks, rank r takes the items at the positions r, r + w, r + 2w and so on.",
            "This is a block of consecutive items.",
            gives=lambda case, rank: [_block(case, rank)],
        ),
        Mistake(
            "kept",
            "Use the list of this call. A list of an earlier call may have had the same length.",
            "These are items of the list of an earlier call.",
            gives=lambda case, rank: [_others(case["items"])[rank :: case.world_size]],
        ),
        VALUES,
        Mistake("nothing", "The function prints or computes something, but does not return it."),
        Mistake("forbidden", "Each rank knows its own positions without a message: send nothing."),
    ),
    allowed=(),
)
