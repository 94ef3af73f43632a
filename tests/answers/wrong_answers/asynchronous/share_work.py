"""
Answers to task 14.4.
"""

from bank import Answer

from wrong_answers.asynchronous.sources import IMPORTS, altered

TAKE = "            number = store.add(str(owner), 1) - 1\n"
DONE = "            results.append(do(owner, number))\n"
LOOP = "    for distance in range(len(sizes)):\n"

ANSWERS = [
    altered(
        "14.4",
        "takes two at a time of others",
        "hoarded",
        (
            "            results.append(do(owner, number))\n",
            """\
            numbers = [number]
            if distance:
                number = store.add(str(owner), 1) - 1
                numbers += [number] if number < sizes[owner] else []
            results += [do(owner, number) for number in numbers]
""",
        ),
    ),
    altered(
        "14.4",
        "looks whether one is left, and trusts that when it takes",
        "raised",
        (
            TAKE + "            if number >= sizes[owner]:\n                break\n",
            "            if store.add(str(owner), 0) >= sizes[owner]:\n                break\n"
            + TAKE,
        ),
    ),
    altered(
        "14.4",
        "gives back what it had counted too much",
        None,
        (
            "                break\n",
            "                store.add(str(owner), -1)\n                break\n",
        ),
    ),
    altered("14.4", "does its own alone", "not-stolen", (LOOP, "    for distance in [0]:\n")),
    Answer(
        "14.4",
        "cuts everything into equal parts",
        "others-first",
        IMPORTS
        + """\
def share_work(store, sizes, do):
    items = [(owner, n) for owner, size in enumerate(sizes) for n in range(size)]
    return [do(*item) for item in items[dist.get_rank() :: dist.get_world_size()]]
""",
    ),
    altered(
        "14.4",
        "steals from its neighbour alone",
        "stops-early",
        (LOOP, "    for distance in range(min(2, len(sizes))):\n"),
        ("(rank + distance)", "(rank + distance * (len(sizes) - 1))"),
    ),
    altered(
        "14.4",
        "counts only what it steals",
        "not-counted",
        (
            TAKE,
            "            is_own = owner == rank\n"
            "            number = len(results) if is_own else store.add(str(owner), 1) - 1\n",
        ),
    ),
    altered(
        "14.4",
        "does each item of others twice",
        "twice",
        (
            DONE,
            DONE
            + "            if owner != rank:\n                results.append(do(owner, number))\n",
        ),
    ),
    altered(
        "14.4",
        "looks, then takes",
        "not-atomic",
        (TAKE, "            number = store.add(str(owner), 0)\n"),
        (
            "                break\n",
            "                break\n            store.add(str(owner), 1)\n",
        ),
    ),
    altered(
        "14.4",
        "loses the first one",
        "lost",
        (
            "store.add(str(owner), 1) - 1\n",
            "store.add(str(owner), 1)\n",
        ),
    ),
    altered("14.4", "returns their number", "no-list", ("return results", "return len(results)")),
    altered(
        "14.4",
        "returns what is its own",
        "results",
        ("return results", "return [one for one in results if one[0] == rank]"),
    ),
    altered("14.4", "returns nothing", "nothing", ("    return results\n", "")),
    altered(
        "14.4",
        "ends with a barrier",
        "forbidden",
        ("    return results", "    dist.barrier()\n    return results"),
    ),
    Answer(
        "14.4",
        "waits for all before it helps",
        "deadlock",
        IMPORTS
        + """\
def share_work(store, sizes, do):
    rank, results = dist.get_rank(), []
    for owner in [rank, *range(len(sizes))]:
        while (number := store.add(str(owner), 1)) <= sizes[owner]:
            results.append(do(owner, number - 1))
        dist.barrier()
    return results
""",
    ),
    altered(
        "14.4",
        "looks for ever",
        "late",
        (LOOP, "    while True:\n     for distance in range(len(sizes)):\n"),
    ),
    altered(
        "14.4",
        "empties the list of sizes",
        "input-changed",
        ("    return results", "    sizes.clear()\n    return results"),
    ),
    altered(
        "14.4",
        "gives back what is beyond the end",
        None,
        (
            "                break\n",
            "                store.add(str(owner), -1)\n                break\n",
        ),
    ),
    Answer(
        "14.4",
        "steals from the longest queue",
        None,
        IMPORTS
        + """\
def share_work(store, sizes, do):
    rank, results = dist.get_rank(), []
    left = {owner for owner, size in enumerate(sizes) if size}
    while left:
        if rank in left:
            owner = rank
        else:
            owner = max(left, key=lambda one: sizes[one] - store.add(str(one), 0))
        number = store.add(str(owner), 1)
        if number > sizes[owner]:
            left.remove(owner)
        else:
            results += [do(owner, number - 1)]
    return results
""",
    ),
    Answer(
        "14.4",
        "goes round by recursion",
        None,
        IMPORTS
        + """\
def share_work(store, sizes, do):
    def empty(owner):
        number = store.add(str(owner), 1)
        return [] if number > sizes[owner] else [do(owner, number - 1), *empty(owner)]

    queues = sorted(range(len(sizes)), key=lambda owner: (owner != dist.get_rank(), owner))
    return [result for owner in queues for result in empty(owner)]
""",
    ),
]
