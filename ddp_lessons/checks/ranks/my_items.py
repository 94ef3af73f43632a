"""
Task 00.1: my_items.
"""

from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.pictures import holdings_picture


def _cases(draw):
    yield Case(4, {"items": list(range(10, 22))}, seed=0)
    for world_size in (1, 2, 3, 4):
        start, length = draw.randint(0, 90), draw.randint(5, 13)
        yield Case(world_size, {"items": list(range(start, start + length))})
    yield Case(3, {"items": [7]})
    yield Case(2, {"items": []})
    # Neither rising, nor each once. And 0 and a text without letters count as false.
    yield Case(2, {"items": ["b", "a", "a", "", "b", "a", "c"]})
    yield Case(2, {"items": [0, 7, 0, 3]})


def _act(here, my_items):
    here.call(my_items, list(here["items"]))
    here.call(my_items, _others(here["items"]))


def _others(items):
    # As many: what is kept of one list is none of another's.
    return [item + 100 if isinstance(item, int) else item for item in items]


def _judge(played):
    items, num_ranks = played.case["items"], played.case.world_size
    _judge_items(played, items, [seen.calls[0].result for seen in played.seen])
    for seen in played.seen:
        got, expected = seen.calls[1].result, _others(items)[seen.rank :: num_ranks]
        if got != expected:
            both = {"got": got, "expected": expected}
            fact = f"Called once more, with the list {_others(items)}, it returns something else."
            raise played.wrong("kept", seen.rank, **both, fact=fact)


def _judge_items(played, items, results):
    num_ranks = played.case.world_size
    for rank, got in enumerate(results):
        expected, both = items[rank::num_ranks], {"got": got}
        if not isinstance(got, list):
            raise played.wrong("no-list", rank, **both, fact="It must return a list.")
        if got == expected:
            continue
        if got == items and num_ranks > 1:
            raise played.wrong("all-items", rank, **both, fact="This rank took every item.")
        if got == [one for one in expected if one]:
            raise played.wrong("left-out", rank, **both, expected=expected)
        if got == items[rank::4]:
            raise played.wrong("fixed-size", rank, **both, expected=expected)
        if "a" in items:
            fact = "By the places of the items, in the list as it was given, it is another share."
            raise played.wrong("by-value", rank, **both, expected=expected, fact=fact)
        if _same_items(got, expected):
            raise played.wrong("order", rank, **both, fact="The items are out of order.")
        fact = "These are not this rank's items."
        raise played.wrong("other-items", rank, **both, expected=expected, fact=fact)


def _same_items(got, expected):
    return len(got) == len(expected) and all(got.count(one) == 1 for one in expected)


def _draw(played):
    shares = [", ".join(map(str, seen.calls[0].result)) for seen in played.seen]
    return holdings_picture(["my items"], [{"my items": share} for share in shares])


my_items = Task(
    number="00.1",
    name="my_items",
    twice=True,
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="each item on exactly one rank, without a message",
    draw=_draw,
    hints=(
        "All ranks run the same line. What makes their answers differ is their rank.",
        "Rank 0 takes the items at places 0, 4, 8 and so on if there are 4 ranks; rank 1 those "
        "at 1, 5, 9.",
        "A slice has a start and a step: items[start::step].",
        "The start is dist.get_rank(), the step is dist.get_world_size().",
    ),
    mistakes={
        "nothing": "The function prints or computes something, but does not return it.",
        "no-list": "Return a list, as items is one.",
        "all-items": "Every rank must leave most items to the others: use its rank.",
        "fixed-size": "Ask how many ranks there are; it is not always 4.",
        "left-out": "An item may be 0, or a text without letters, which count as false. Take all "
        "of them.",
        "by-value": "Go by the places of items: a list may hold an item twice, items may be texts, "
        "and they need not rise.",
        "order": "Keep the items in the order in which they came.",
        "other-items": "Rank r takes the items at places r, r + w, r + 2w and so on, for w ranks.",
        "kept": "Go by the list that you are given in this call. Another one may be as long.",
        "forbidden": "Each rank can tell by itself which items are its own: send nothing.",
    },
    allowed=(),
)
