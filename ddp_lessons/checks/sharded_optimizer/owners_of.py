"""
Task 13.1: partition parameters evenly.
"""

from itertools import pairwise

from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.pictures import holdings_picture

_MANY_RANKS = 48


def _cases(draw):
    yield Case(4, {"sizes": [40, 8, 200, 8, 30, 3]}, seed=0)
    for world_size in (1, 2):
        yield Case(world_size, {"sizes": _layers(draw)})
    twins = [draw.randint(2, 9)] * 4  # a layer may be there twice, and a parameter be empty
    yield Case(3, {"sizes": [0, *twins, *_layers(draw), 0]})
    yield Case(4, {"sizes": [draw.randint(1, 9) for _ in range(2)]})
    yield Case(2, {"sizes": []})
    yield Case(2, {"sizes": [size for _ in range(30) for size in _layers(draw)], "of": _MANY_RANKS})


def _layers(draw):
    # A matrix, then its bias, as models have them.
    widths = [draw.randint(2, 12) for _ in range(5)]
    return [size for one, other in pairwise(widths) for size in (one * other, other)]


def _num_owners(case):
    return case.data.get("of", case.world_size)


def _act(here, owners_of):
    here.call(owners_of, list(here["sizes"]), _num_owners(here.case))


def _judge(played):
    sizes, num_owners = played.case["sizes"], _num_owners(played.case)
    found = [_owners(played, rank, result) for rank, result in enumerate(played.results)]
    for rank, owners in enumerate(found):
        if owners != found[0]:
            both = {"got": owners, "expected": found[0]}
            raise played.wrong("differ", rank, **both, fact="Rank 0 has found another list.")
    _judge_evenness(played, sizes, found[0], num_owners)


def _owners(played, rank, result):
    sizes, num_owners = played.case["sizes"], _num_owners(played.case)
    if hasattr(result, "tolist"):
        result = result.tolist()
    if not isinstance(result, list | tuple):
        raise played.wrong("no-list", rank, got=result, fact="It must return a list.")
    owners = list(result)
    if len(owners) != len(sizes):
        fact = f"There are {len(sizes)} parameters, and its list has {len(owners)} entries."
        raise played.wrong("length", rank, got=owners, fact=fact)
    are_ranks = all(type(owner) is int and 0 <= owner < num_owners for owner in owners)
    if not are_ranks:
        fact = f"An owner must be a rank from 0 to {num_owners - 1}."
        raise played.wrong("no-rank", rank, got=owners, fact=fact)
    return owners


def loads_of(sizes, owners, num_owners):
    """
    Return how many numbers each rank owns.
    """
    loads = [0] * num_owners
    for size, owner in zip(sizes, owners, strict=True):
        loads[owner] += size
    return loads


def _judge_evenness(played, sizes, owners, num_owners):
    loads = loads_of(sizes, owners, num_owners)
    emptiest = loads.index(min(loads))
    for size, owner in zip(sizes, owners, strict=True):
        fuller = max(loads[owner], loads[emptiest])
        if max(loads[owner] - size, loads[emptiest] + size) < fuller:
            fact = (
                f"Rank {owner} owns {loads[owner]} numbers, rank {emptiest} owns "
                f"{loads[emptiest]}. Rank {owner} could give away a parameter of {size}."
            )
            mistake = _name(played.case, sizes, owners, num_owners)
            raise played.wrong(mistake, got=owners, fact=fact)


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


def _name(case, sizes, owners, num_owners):
    if num_owners > case.world_size and max(owners) < case.world_size:
        return "asked"
    turns = [index % num_owners for index in range(len(sizes))]
    falling = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    greedy = _greedy([sizes[index] for index in falling], num_owners)
    rising = sorted(range(len(sizes)), key=lambda index: sizes[index])
    by_size = dict(zip((sizes[index] for index in falling), greedy, strict=True))
    first = [sizes.index(sizes[index]) for index in falling]
    known = {
        "in-turn": [turns, _in_places(turns, falling)],
        "lost-places": [greedy],
        "twins": [_in_places(greedy, first), [by_size[size] for size in sizes]],
        "unsorted": [_greedy(sizes, num_owners)],
        "smallest-first": [
            _in_places(_greedy([sizes[index] for index in rising], num_owners), rising)
        ],
    }
    for name, lists in known.items():
        if owners in lists:
            return name
    return "blocks" if owners == sorted(owners) else "values"


def _draw(played):
    sizes, owners = played.case["sizes"], played.results[0]
    names, rows = ["parameters of", "numbers"], []
    for rank in range(played.case.world_size):
        own = [size for size, owner in zip(sizes, owners, strict=True) if owner == rank]
        texts = [" + ".join(map(str, own)) or "none", str(sum(own))]
        rows.append(dict(zip(names, texts, strict=True)))
    return holdings_picture(names, rows)


owners_of = Task(
    number="13.1",
    name="owners_of",
    cases=_cases,
    act=_act,
    judge=_judge,
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
    mistakes={
        "in-turn": "Dealt out in turn, ranks have equally many parameters, and not equally many "
        "numbers.",
        "blocks": "Neighbours stay together, whatever their size. A rank that is full enough must "
        "not get more, and a later parameter may fit an earlier rank.",
        "unsorted": "Each goes to whoever has least, which is right. But a large one that comes "
        "late finds no room. In which order do they come best?",
        "smallest-first": "The largest comes last, and lands on what is there. Turn the order "
        "round.",
        "lost-places": "You have sorted, and the owners are in the sorted order. Put each back "
        "where its parameter stands in `sizes`.",
        "twins": "Two parameters may have equally many numbers: tell them apart by their places.",
        "values": "The two ranks that are named would be more even if that parameter moved. If you "
        "move parameters, go on until no move helps: a pass through all is not enough.",
        "no-list": "Return a list with an owner for each parameter.",
        "length": "One entry for each parameter, in the order of `sizes`.",
        "no-rank": "Owners are whole numbers from 0 to world_size - 1.",
        "differ": "All ranks must find the same list: from the arguments alone, and not from this "
        "rank's number or from chance.",
        "asked": "You are asked about more ranks than run: take world_size from the arguments.",
        "raised": "The line that is named is yours. There may be fewer parameters than ranks, or "
        "none.",
        "input-changed": "Leave `sizes` as it is: sort a copy, or its places.",
        "forbidden": "No message is needed: every rank knows all sizes.",
    },
    allowed=(),
)
