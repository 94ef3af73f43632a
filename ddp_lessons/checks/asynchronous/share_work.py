"""
Task 14.4: balance by stealing work.

On each rank: `_act`, `_Counters`. In the kernel: the rest.
"""

from collections import Counter

import torch
import torch.distributed as dist

from ddp_lessons.checks.asynchronous.work_queues import Work
from ddp_lessons.checks.kit import Case, Mistake, Task, words
from ddp_lessons.pictures import holdings_picture
from ddp_lessons.private.process_groups import default_store

NUM_CALLS = 2


def _cases(draw):
    yield Case(2, {"sizes": [2, 4], "slow": [1]}, seed=0)
    yield Case(1, {"sizes": [draw.randint(2, 5)], "slow": []})
    # The slow ranks are neighbours: if each rank helps only one neighbour, a queue gets no help.
    first = draw.randrange(4)
    yield _case(draw, [first, (first + 1) % 4], [draw.randint(1, 3) for _ in range(4)])
    yield _case(draw, [draw.choice([1, 2])], [0, draw.randint(1, 3), draw.randint(1, 3)])


def _case(draw, slow, sizes):
    for rank in slow:
        sizes[rank] += draw.randint(4, 5)
    return Case(len(sizes), {"sizes": sizes, "slow": slow})


def _act(context, share_work):
    whole = default_store()
    kept = []
    for number in range(NUM_CALLS):
        store = dist.PrefixStore(f"work {context.case.seed} {number}", whole)
        work = Work(store, context["sizes"], context["slow"])
        context.call(share_work, _Counters(work), list(context["sizes"]), work.do)
        work.leave()
        names = ("done", "ghosts", "added", "left", "hoarded", "untaken", "held")
        kept.append({name: getattr(work, name) for name in names})
    return kept


class _Counters:
    """
    The store that the answer gets: it has `add` and nothing else.
    """

    def __init__(self, work):
        self.add = work.add


def _in_a_call(fact_of):
    """
    Return a `shows` that returns the first fact that `fact_of(view, kept)` finds in one of the
    calls.

    `kept` is a list with the notes of each rank's Work in that call.
    """

    def shows(view):
        calls = zip(*(seen.output for seen in view.case_result.seen), strict=True)
        return next(filter(None, (fact_of(view, kept) for kept in calls)), "")

    return shows


def _is_no_list(view):
    odd = [call.result for call in view.seen.calls if not isinstance(call.result, list)]
    return odd and f"It returns {words(odd[0])}."


def _returns_other_results(view):
    for call, kept in zip(view.seen.calls, view.output, strict=True):
        told = [
            tuple(map(int, one)) if isinstance(one, torch.Tensor) else one for one in call.result
        ]
        if told != kept["done"]:
            return f"It returns {told}, and `do` returned {kept['done']} on this rank."
    return ""


def _times(view, kept):
    """
    Return (item, how often it was done, whether a ghost took it) for each item.
    """
    counts = Counter([item for one in kept for item in one["done"]])
    ghosts = {item for one in kept for item in one["ghosts"]}
    items = [(owner, n) for owner, size in enumerate(view.case["sizes"]) for n in range(size)]
    return [(item, counts[item], item in ghosts) for item in items]


def _takes_a_ghosts(view, kept):
    taken = [item for item, times, is_ghosts in _times(view, kept) if times and is_ghosts]
    return taken and (
        f"While a rank looked at a counter, another took item {taken[0][1]} of rank "
        f"{taken[0][0]}. It was done all the same."
    )


def _used(kept):
    return [{key for key, amount in one["added"] if amount} for one in kept]


def _counts_nothing(view, kept):
    used = _used(kept)
    for (owner, number), times, _ in _times(view, kept):
        if times > 1 and (str(owner) not in used[owner]):
            return f"Item {number} of rank {owner} was done {times} times."
    if any(one["left"] for one in kept):
        return ""
    everyone = set().union(*used)
    left_out = [r for r, n in enumerate(view.case["sizes"]) if n and str(r) not in everyone]
    return left_out and f"Nobody has counted the items of rank {left_out[0]} under its number."


def _does_twice(view, kept):
    again = [(item, times) for item, times, _ in _times(view, kept) if times > 1]
    return again and (
        f"Item {again[0][0][1]} of rank {again[0][0][0]} was done {again[0][1]} times."
    )


def _loses(view, kept):
    lost = [item for item, times, is_ghosts in _times(view, kept) if not times and not is_ghosts]
    return lost and (
        f"{len(lost)} items were done by nobody; the first is item {lost[0][1]} of rank "
        f"{lost[0][0]}."
    )


def _takes_others_first(view, kept):
    is_own = [owner == view.rank for owner, _ in kept[view.rank]["done"]]
    return (
        False in is_own
        and True in is_own[is_own.index(False) :]
        and "It took an item of another while it had some of its own."
    )


def _left(view, kept):
    """
    Return (items left, those of them that were taken and not begun); (0, 0) for a fast rank.
    """
    own = kept[view.rank]
    return (own["left"], own["hoarded"]) if view.rank in view.case["slow"] else (0, 0)


def _hoards(view, kept):
    left, hoarded = _left(view, kept)
    if left and hoarded == left:
        return f"{left} items were taken and not begun when all fast ranks had returned."
    held = kept[view.rank]["held"]
    return held and not left and f"When it began an item, it had taken {held} more."


def _stops(is_stolen):
    """
    Return a `fact_of` that tells whether work is left, if ranks have stolen items (or have not).
    """

    def fact_of(view, kept):
        has_stolen = any(owner != at for at, one in enumerate(kept) for owner, _ in one["done"])
        left, untaken = _left(view, kept)[0], kept[view.rank]["untaken"]
        if has_stolen != is_stolen or not (left or untaken):
            return ""
        if left:
            return f"{left} items were left when all fast ranks had returned."
        return f"It returns while {untaken} items are left that nobody has taken."

    return fact_of


def _draw(case_result):
    names = ["own items", "done here, as rank.number"]
    rows = []
    for size, seen in zip(case_result.case["sizes"], case_result.seen, strict=True):
        told = " ".join(f"{owner}.{number}" for owner, number in seen.output[0]["done"])
        rows.append(dict(zip(names, [str(size), told], strict=True)))
    return holdings_picture(names, rows)


share_work = Task(
    number="14.4",
    name="share_work",
    cases=_cases,
    act=_act,
    ok="every item once, and nobody idle while one is left",
    draw=_draw,
    hints=(
        "Two ranks must never take one item. So nobody may take one without counting it, not even "
        "of its own queue.",
        "`add` gives each caller a number of its own. Which item is that number's, and how do you "
        "see that none is left?",
        "One loop takes from one queue until its counter is beyond its size. Run it for your own "
        "queue, then for every other.",
        "while (n := store.add(str(owner), 1)) <= sizes[owner]: results.append(do(owner, n - 1)), "
        "for owner in your own rank first, then all others.",
    ),
    mistakes=(
        Mistake(
            "no-list",
            "Return a list of what `do` returned. It is empty where nothing was left.",
            shows=_is_no_list,
        ),
        Mistake(
            "results",
            "Keep what `do` returns, of own and of stolen items, and nothing else.",
            shows=_returns_other_results,
        ),
        Mistake(
            "not-atomic",
            "Between a look and the add that follows, another rank may come. Go by what the add "
            "returned that took the item.",
            shows=_in_a_call(_takes_a_ghosts),
        ),
        Mistake(
            "not-counted",
            "Count each item that you take under the rank whose it is, also of your own queue: "
            "others see only the counters.",
            shows=_in_a_call(_counts_nothing),
        ),
        Mistake(
            "twice",
            "The number that add returns is this rank's alone. Do the item that belongs to it and "
            "no other, and count each item that you take, also of your own queue.",
            shows=_in_a_call(_does_twice),
        ),
        Mistake(
            "lost",
            "The first add returns 1, and items are numbered from 0. If you have counted an item, "
            "you must do it.",
            shows=_in_a_call(_loses),
        ),
        Mistake(
            "others-first",
            "Take your own items first, as long as there are any: their data are here.",
            shows=_in_a_call(_takes_others_first),
        ),
        Mistake(
            "hoarded",
            "Take one item at a time. What a rank has taken and not begun, nobody can take from "
            "it.",
            shows=_in_a_call(_hoards),
        ),
        Mistake(
            "not-stolen",
            "A rank that has none left looks into the queues of all others.",
            shows=_in_a_call(_stops(is_stolen=False)),
        ),
        Mistake(
            "stops-early",
            "It stops stealing too soon: a queue that is empty, or one that is done with, says "
            "nothing of the others.",
            shows=_in_a_call(_stops(is_stolen=True)),
        ),
        Mistake("nothing", "Return the list of what `do` returned."),
        Mistake(
            "raised",
            "The line that is named is yours. The number that `add(key, 1)` returns is yours, and "
            "no other: between a look at a counter and the add, another rank may come. It may be "
            "beyond the size of the queue: then there is no item for it.",
        ),
        Mistake("forbidden", "No message is needed: the counters say all that ranks must know."),
        Mistake("deadlock", "Nobody needs to wait for anybody. When all queues are empty, return."),
        Mistake("late", "When all queues are empty, return: their counters only grow."),
        Mistake("input-changed", "Leave the list of sizes as it is."),
    ),
    allowed=(),
    uses_store=True,
)
