"""
Task 14.4: balance by stealing work.
"""

from collections import Counter

import torch
import torch.distributed as dist

from ddp_lessons.checks.asynchronous.work_queues import Work
from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.pictures import holdings_picture

NUM_CALLS = 2


def _cases(draw):
    yield Case(2, {"sizes": [2, 4], "slow": [1]}, seed=0)
    yield Case(1, {"sizes": [draw.randint(2, 5)], "slow": []})
    # Neighbours: who helps one neighbour alone leaves one of the two queues to nobody.
    first = draw.randrange(4)
    yield _case(draw, [first, (first + 1) % 4], [draw.randint(1, 3) for _ in range(4)])
    yield _case(draw, [draw.choice([1, 2])], [0, draw.randint(1, 3), draw.randint(1, 3)])


def _case(draw, slow, sizes):
    for rank in slow:
        sizes[rank] += draw.randint(4, 5)
    return Case(len(sizes), {"sizes": sizes, "slow": slow})


def _act(here, share_work):
    whole = dist.distributed_c10d._get_default_store()
    kept = []
    for number in range(NUM_CALLS):
        store = dist.PrefixStore(f"work {here.case.seed} {number}", whole)
        work = Work(store, here["sizes"], here["slow"])
        here.call(share_work, _Counters(work), list(here["sizes"]), work.do)
        work.leave()
        names = ("done", "ghosts", "added", "left", "hoarded", "untaken", "held")
        kept.append({name: getattr(work, name) for name in names})
    return kept


class _Counters:
    """
    What the answer gets as its store: `add` and nothing else.
    """

    def __init__(self, work):
        self.add = work.add


def _judge(played):
    for number in range(NUM_CALLS):
        kept = [seen.kept[number] for seen in played.seen]
        for rank, seen in enumerate(played.seen):
            _judge_results(played, rank, seen.calls[number].result, kept[rank]["done"])
        _judge_once(played, kept)
        for rank, one in enumerate(kept):
            _judge_own_first(played, rank, one["done"])
        _judge_help(played, kept)


def _judge_results(played, rank, got, done):
    if not isinstance(got, list):
        fact = "It must return a list."
        raise played.wrong("no-list", rank, got=got, fact=fact)
    told = [tuple(map(int, one)) if isinstance(one, torch.Tensor) else one for one in got]
    if told != done:
        fact = "It must return what `do` returned on this rank, in order."
        raise played.wrong("results", rank, got=told, expected=done, fact=fact)


def _judge_once(played, kept):
    ghosts = [item for one in kept for item in one["ghosts"]]
    counts = Counter([item for one in kept for item in one["done"]])
    items = [(owner, n) for owner, size in enumerate(played.case["sizes"]) for n in range(size)]
    for owner, number in items:
        times = counts[owner, number]
        who = [rank for rank, one in enumerate(kept) if (owner, number) in one["done"]]
        if times and (owner, number) in ghosts:
            fact = f"While rank {who[0]} looked at a counter, another took item {number} of rank "
            fact += f"{owner}. Rank {who[0]} did it all the same."
            raise played.wrong("not-atomic", fact=fact)
        if times > 1:
            fact = f"Item {number} of rank {owner} was done {times} times, on ranks {who}."
            added = [key for one in kept for key, amount in one["added"] if amount]
            own = [key for key, amount in kept[owner]["added"] if amount]
            is_uncounted = str(owner) not in own or not added
            raise played.wrong("not-counted" if is_uncounted else "twice", fact=fact)
    lost = [item for item in items if not counts[item] and item not in ghosts]
    if lost:
        owner, number = lost[0]
        fact = f"{len(lost)} of {len(items)} items were done by nobody; the first is item {number} "
        fact += f"of rank {owner}."
        raise played.wrong("lost", fact=fact)


def _judge_own_first(played, rank, done):
    is_own = [owner == rank for owner, _ in done]
    if False in is_own and True in is_own[is_own.index(False) :]:
        fact = f"Rank {rank} took an item of another while it had some of its own."
        raise played.wrong("others-first", rank, fact=fact)


def _judge_help(played, kept):
    is_stolen = any(owner != at for at, one in enumerate(kept) for owner, _ in one["done"])
    mistake = "stops-early" if is_stolen else "not-stolen"
    for rank in played.case["slow"]:
        left = kept[rank]["left"]
        if left:
            fact = f"Rank {rank} was busy with one item until all fast ranks had returned; "
            if kept[rank]["hoarded"] == left:
                raise played.wrong("hoarded", fact=f"{fact}{left} were taken and not begun then.")
            raise played.wrong(mistake, fact=f"{fact}{left} items were left then.")
    used = {key for one in kept for key, amount in one["added"] if amount}
    for owner, size in enumerate(played.case["sizes"]):
        if size and str(owner) not in used:
            fact = f"Nobody has counted the items of rank {owner} under its number."
            raise played.wrong("not-counted", fact=fact)
    for rank, one in enumerate(kept):
        if one["held"]:
            fact = f"When rank {rank} began an item, it had taken {one['held']} more."
            raise played.wrong("hoarded", rank, fact=fact)
        if one["untaken"]:
            fact = f"Rank {rank} returns while {one['untaken']} items are left that nobody has "
            raise played.wrong(mistake, rank, fact=f"{fact}taken.")


def _draw(played):
    names = ["own items", "done here, as rank.number"]
    rows = []
    for size, seen in zip(played.case["sizes"], played.seen, strict=True):
        told = " ".join(f"{owner}.{number}" for owner, number in seen.kept[0]["done"])
        rows.append(dict(zip(names, [str(size), told], strict=True)))
    return holdings_picture(names, rows)


share_work = Task(
    number="14.4",
    name="share_work",
    cases=_cases,
    act=_act,
    judge=_judge,
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
    mistakes={
        "not-stolen": "A rank that has none left looks into the queues of all others.",
        "stops-early": "It stops stealing too soon: a queue that is empty, or one that is done "
        "with, says nothing of the others.",
        "hoarded": "Take one item at a time. What a rank has taken and not begun, nobody can take "
        "from it.",
        "twice": "The number that add returns is this rank's alone. Do the item that belongs to it "
        "and no other.",
        "not-counted": "Count each item that you take under the rank whose it is, also of your own "
        "queue: others see only the counters.",
        "not-atomic": "Between a look and the add that follows, another rank may come. Go by what "
        "the add returned that took the item.",
        "lost": "The first add returns 1, and items are numbered from 0. Who has counted an item "
        "must do it.",
        "others-first": "Take your own items first, as long as there are any: their data are here.",
        "no-list": "Return a list of what `do` returned. It is empty where nothing was left.",
        "results": "Keep what `do` returns, of own and of stolen items, and nothing else.",
        "nothing": "Return the list of what `do` returned.",
        "raised": "The line that is named is yours. The number that `add(key, 1)` returns is "
        "yours, and no other: between a look at a counter and the add, another rank may come. It "
        "may be beyond the size of the queue: then there is no item for it. A rank may have no "
        "items of its own.",
        "forbidden": "No message is needed: the counters say all that ranks must know.",
        "deadlock": "Nobody needs to wait for anybody. Who finds all queues empty returns.",
        "late": "When all queues are empty, return: their counters only grow.",
        "input-changed": "Leave the list of sizes as it is.",
    },
    allowed=(),
    uses_store=True,
)
