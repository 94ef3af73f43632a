"""
Task 13.1: partition parameters evenly.

On each rank: `_act`; in both: `_num_owners`. In the kernel: the rest.
"""

from itertools import pairwise

from ddp_lessons.checks.kit import Case, Mistake, Task, words
from ddp_lessons.pictures import holdings_picture

_MANY_RANKS = 48


def _cases(draw):
    yield Case(4, {"sizes": [40, 8, 200, 8, 30, 3]}, seed=0)
    for world_size in (1, 2):
        yield Case(world_size, {"sizes": _layers(draw)})
    twins = [draw.randint(2, 9)] * 4  # equal layers and empty parameters may occur
    yield Case(3, {"sizes": [0, *twins, *_layers(draw), 0]})
    yield Case(4, {"sizes": [draw.randint(1, 9) for _ in range(2)]})
    yield Case(2, {"sizes": []})
    yield Case(2, {"sizes": [size for _ in range(30) for size in _layers(draw)], "of": _MANY_RANKS})


def _layers(draw):
    # Each matrix is followed by its bias, as in a model.
    widths = [draw.randint(2, 12) for _ in range(5)]
    return [size for one, other in pairwise(widths) for size in (one * other, other)]


def _num_owners(case):
    return case.data.get("of", case.world_size)


def _act(context, owners_of):
    context.call(owners_of, list(context["sizes"]), _num_owners(context.case))


def _owners(result):
    """
    Return an answer's result as a list of owners, or None if it is no such list.
    """
    result = result.tolist() if hasattr(result, "tolist") else result
    is_list = isinstance(result, list | tuple) and all(type(owner) is int for owner in result)
    return list(result) if is_list else None


def _is_no_list_of_owners(view):
    owners, sizes, num_owners = _owners(view.got), view.case["sizes"], _num_owners(view.case)
    if owners is None:
        return f"It returns {words(view.got)}."
    if len(owners) != len(sizes):
        return f"There are {len(sizes)} parameters, and its list has {len(owners)} entries."
    is_rank = all(0 <= owner < num_owners for owner in owners)
    return not is_rank and f"An owner must be a rank from 0 to {num_owners - 1}."


def _differs(view):
    first = view.case_result.results[0]
    return _owners(view.got) != _owners(first) and (
        f"It returns {words(view.got)}, and rank 0 {words(first)}."
    )


def loads_of(sizes, owners, num_owners):
    """
    Return how many numbers each rank owns.
    """
    loads = [0] * num_owners
    for size, owner in zip(sizes, owners, strict=True):
        loads[owner] += size
    return loads


def _is_uneven(view):
    sizes, owners = view.case["sizes"], _owners(view.got)
    loads = loads_of(sizes, owners, _num_owners(view.case))
    emptiest = loads.index(min(loads))
    for size, owner in zip(sizes, owners, strict=True):
        fuller = max(loads[owner], loads[emptiest])
        if max(loads[owner] - size, loads[emptiest] + size) < fuller:
            return (
                f"It returns {words(view.got)}. Rank {owner} owns {loads[owner]} numbers, rank "
                f"{emptiest} owns {loads[emptiest]}. Rank {owner} could give away a parameter of "
                f"{size}."
            )
    return ""


def _greedy(sizes, num_owners):
    loads, owners = [0] * num_owners, []
    for size in sizes:
        owners.append(loads.index(min(loads)))
        loads[owners[-1]] += size
    return owners


def _in_places(owners, order):
    placed = [0] * len(owners)
    for owner, index in zip(owners, order, strict=True):
        placed[index] = owner
    return placed


def _is_one_of(lists_of):
    """
    Return a `shows` that tells whether owners are uneven and in `lists_of(sizes, num_owners)`.
    """

    def shows(view):
        lists = lists_of(view.case["sizes"], _num_owners(view.case))
        return _owners(view.got) in lists and _is_uneven(view)

    return shows


def _falling(sizes):
    return sorted(range(len(sizes)), key=lambda index: -sizes[index])


def _in_turn(sizes, num_owners):
    turns = [index % num_owners for index in range(len(sizes))]
    return [turns, _in_places(turns, _falling(sizes))]


def _in_sorted_places(sizes, num_owners):
    return [_greedy([sizes[index] for index in _falling(sizes)], num_owners)]


def _smallest_first(sizes, num_owners):
    rising = sorted(range(len(sizes)), key=lambda index: sizes[index])
    return [_in_places(_greedy([sizes[index] for index in rising], num_owners), rising)]


def _goes_by_ranks(view):
    is_asked = _num_owners(view.case) > view.case.world_size
    is_within = max(_owners(view.got), default=0) < view.case.world_size
    return is_asked and is_within and _is_uneven(view)


def _draw(case_result):
    sizes, owners = case_result.case["sizes"], case_result.results[0]
    names, rows = ["parameters of", "numbers"], []
    for rank in range(case_result.case.world_size):
        own = [size for size, owner in zip(sizes, owners, strict=True) if owner == rank]
        texts = [" + ".join(map(str, own)) or "none", str(sum(own))]
        rows.append(dict(zip(names, texts, strict=True)))
    return holdings_picture(names, rows)


owners_of = Task(
    number="13.1",
    name="owners_of",
    cases=_cases,
    act=_act,
    ok="no parameter could be given away for better, also among 48 ranks",
    draw=_draw,
    twice=True,
    hints=(
        "Think of boxes that are to be put on several carts. With which box would you begin, and "
        "on which cart does the next one go?",
        "A parameter goes to the rank that has the fewest numbers so far. Keep a list of what "
        "each rank has.",
        "Begin with the largest: what comes late can then do little harm. But the list that you "
        "return is in the order of `sizes`.",
        "for index in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True): "
        "owners[index] = loads.index(min(loads)); then add its size there.",
    ),
    mistakes=(
        Mistake(
            "no-owners",
            "Return a list with an owner for each parameter, in the order of `sizes`: whole "
            "numbers from 0 to world_size - 1.",
            shows=_is_no_list_of_owners,
        ),
        Mistake(
            "differ",
            "All ranks must find the same list: from the arguments alone, and not from this rank's "
            "number or from chance.",
            shows=_differs,
        ),
        Mistake(
            "asked",
            "You are asked about more ranks than run: take world_size from the arguments.",
            shows=_goes_by_ranks,
        ),
        Mistake(
            "kept",
            "Count how full ranks are anew in each call.",
            shows=lambda view: view.case_result.call != "first" and _is_uneven(view),
        ),
        Mistake(
            "in-turn",
            "Dealt out in turn, ranks have equally many parameters, and not equally many numbers.",
            shows=_is_one_of(_in_turn),
        ),
        Mistake(
            "lost-places",
            "You have sorted, and the owners are in the sorted order. Put each back where its "
            "parameter stands in `sizes`. Two may be equally large: tell them apart by places.",
            shows=_is_one_of(_in_sorted_places),
        ),
        Mistake(
            "unsorted",
            "Each goes to whoever has least, which is right. But a large one that comes late finds "
            "no room. In which order do they come best?",
            shows=_is_one_of(lambda sizes, num_owners: [_greedy(sizes, num_owners)]),
        ),
        Mistake(
            "smallest-first",
            "The largest comes last, and lands on what is there. Turn the order round.",
            shows=_is_one_of(_smallest_first),
        ),
        Mistake(
            "uneven",
            "The two ranks that are named would be more even if that parameter moved. Give each "
            "parameter to the rank that has least so far, wherever its neighbours are. If you move "
            "parameters, go on until no move helps: a pass through all is not enough.",
            shows=_is_uneven,
        ),
        Mistake(
            "raised",
            "The line that is named is yours. There may be fewer parameters than ranks, or none.",
        ),
        Mistake("input-changed", "Leave `sizes` as it is: sort a copy, or its places."),
        Mistake("forbidden", "No message is needed: every rank knows all sizes."),
    ),
    allowed=(),
)
