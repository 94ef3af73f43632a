"""
Task 17.2: which remedy for which link.
"""

from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.costs import Link
from ddp_lessons.many_machines import EVERY, SHARE, WAYS, Plan, foretold_s
from ddp_lessons.pictures import holdings_picture

LIMIT = 1.1
"""
How much longer than by the best way a batch may take.
"""
_CLEARLY = 1.3  # so much worse is what a mistake leads to in the case that is drawn for it
_SAME = 1e-6  # costs that differ less are the same, but for rounding
_RIGHT = {
    "num_hosts": 3,
    "ranks_per_host": 4,
    "num_bytes": 10_000_000,
    "compute_s": 0.01,
    "pack_s": 0.02,
    "latency_s": 0.02,
    "bytes_per_s": 2_000_000,
    "local_latency_s": 0.00001,
    "local_bytes_per_s": 100_000_000,
}
FIGURES = tuple(_RIGHT)
_NO_TIME = {"local_latency_s": 0.0, "local_bytes_per_s": float("inf")}


def plan_of(figures):
    """
    Return the lesson's Plan of some figures.
    """
    return Plan(
        figures["num_hosts"],
        figures["ranks_per_host"],
        figures["num_bytes"],
        figures["compute_s"],
        Link(figures["latency_s"], figures["bytes_per_s"]),
        Link(figures["local_latency_s"], figures["local_bytes_per_s"]),
        figures["pack_s"],
    )


def batch_s(name, figures, **other):
    """
    Return the seconds of a batch, by the lesson's formulas.

    Args:
        name: One of WAYS.
        figures: A dictionary of FIGURES.
        other: Figures to put in their place.
    """
    return foretold_s(name, plan_of({**figures, **other}))


def _no_window(name, figures):
    compute_s = figures["compute_s"]
    return compute_s + (batch_s(name, figures) - compute_s) * EVERY.get(name, 1)


def _compute_shared(name, figures):
    return batch_s(name, figures) - figures["compute_s"] * (1 - 1 / EVERY.get(name, 1))


def _not_shared(name, figures):
    # Each rank of a host is given the whole link for its part.
    if name != "hierarchical":
        return batch_s(name, figures)
    h, g = figures["num_hosts"], figures["ranks_per_host"]
    across_s = 2 * (h - 1) / h * figures["num_bytes"] / figures["bytes_per_s"]
    return batch_s(name, figures) - across_s * (1 - 1 / g)


def _as_all_reduce(name, figures):
    if name != "top-k":
        return batch_s(name, figures)
    rest_s = figures["compute_s"] + figures["pack_s"]
    less = int(2 * SHARE * figures["num_bytes"])
    return rest_s + batch_s("flat", figures, num_bytes=less, compute_s=0.0)


def _one_message(name, figures):
    share = {"half": 0.5, "top-k": 2 * SHARE}.get(name, 1)
    packed_s = figures["pack_s"] if share < 1 else 0.0
    message_s = figures["latency_s"] + share * figures["num_bytes"] / figures["bytes_per_s"]
    return figures["compute_s"] + packed_s + message_s / EVERY.get(name, 1)


def _flat_by_hosts(name, figures):
    # Only what goes round the flat ring whole: half and top-k are reckoned right.
    fewer = {} if name in ("half", "top-k", "hierarchical") else {"ranks_per_host": 1}
    return batch_s(name, figures, **fewer)


def _no_positions(name, figures):
    less_s = batch_s("top-k", figures) - batch_s("top-k", figures, num_bytes=0)
    return batch_s(name, figures) - (less_s / 2 if name == "top-k" else 0.0)


def _accumulate_as_local(name, figures):
    return batch_s("local SGD" if name == "accumulate" else name, figures)


def _local_as_accumulate(name, figures):
    return batch_s("accumulate" if name == "local SGD" else name, figures)


RECIPES = {
    "slowest": lambda name, figures: -batch_s(name, figures),
    "not-allowed": batch_s,
    "no-latency": lambda name, figures: batch_s(name, figures, latency_s=0.0, local_latency_s=0.0),
    "no-bytes": lambda name, figures: batch_s(name, figures, num_bytes=0),
    "bits": lambda name, figures: batch_s(name, figures, num_bytes=8 * figures["num_bytes"]),
    "no-packing": lambda name, figures: batch_s(name, figures, pack_s=0.0),
    "no-window": _no_window,
    "no-local": lambda name, figures: batch_s(name, figures, **_NO_TIME),
    "not-shared": _not_shared,
    "one-message": _one_message,
    "top-k-reduced": _as_all_reduce,
    "hosts-only": lambda name, figures: batch_s(name, figures, ranks_per_host=1),
    "flat-by-hosts": _flat_by_hosts,
    "window-of-8": _accumulate_as_local,
    "window-of-4": _local_as_accumulate,
    "no-positions": _no_positions,
    "compute-shared": _compute_shared,
}
"""
For each mistake how it reckons the seconds of a batch; "not-allowed" chooses among all ways.
"""
_ALWAYS_WRONG = ("slowest", "not-allowed")
_SHARED = {
    "top-k-reduced": ("one-message",),
    "window-of-8": ("flat-by-hosts", "hosts-only", "one-message", "no-bytes", "no-latency"),
    "window-of-4": ("no-window",),
    "no-positions": tuple(name for name in RECIPES if name != "no-positions"),
    "compute-shared": ("no-bytes", "hosts-only", "flat-by-hosts"),
}
"""
Mistakes that go wrong wherever another one does, which has a case of its own before.
"""


def chosen_by(mistake, figures, allowed):
    """
    Return the ways that a mistake may choose: those that it takes for the fastest, or as fast.
    """
    among = list(WAYS) if mistake == "not-allowed" else allowed
    costs = {name: RECIPES[mistake](name, figures) for name in among}
    least = min(costs.values())
    return [name for name, cost in costs.items() if cost <= least + _SAME * abs(least)]


def times_worse(name, figures, allowed):
    """
    Return how many times as long a batch takes as by the best way; infinity if it is not allowed.
    """
    if name not in allowed:
        return float("inf")
    return batch_s(name, figures) / min(batch_s(one, figures) for one in allowed)


def _cases(draw):
    # All mistakes below choose well here: each is told apart in the case that is drawn for it.
    yield Case(1, {**_RIGHT, "allowed": ["top-k", "flat", "half"]}, seed=0)
    for mistake in RECIPES:
        yield Case(1, _aimed_at(mistake, draw))


def _aimed_at(mistake, draw):
    """
    Draw figures for which one mistake leads to a choice that costs much, and no other does.
    """
    not_asked = (mistake, *_ALWAYS_WRONG, *_SHARED.get(mistake, ()))
    others = [one for one in RECIPES if one not in not_asked]
    while True:
        figures, allowed = _drawn(draw)
        if _best_of(mistake, figures, allowed) < _CLEARLY:
            continue
        if all(_worst_of(one, figures, allowed) < LIMIT for one in others):
            return {**figures, "allowed": allowed}


def _best_of(mistake, figures, allowed):
    chosen = chosen_by(mistake, figures, allowed)
    return min(times_worse(name, figures, allowed) for name in chosen)


def _worst_of(mistake, figures, allowed):
    chosen = chosen_by(mistake, figures, allowed)
    return max(times_worse(name, figures, allowed) for name in chosen)


def _drawn(draw):
    allowed = draw.sample(list(WAYS), draw.randint(2, 4))
    return {
        "num_hosts": draw.choice((2, 3, 4, 8, 32)),
        "ranks_per_host": draw.choice((2, 4, 8)),
        "num_bytes": 10 ** draw.randint(4, 8) * draw.randint(1, 9),
        "compute_s": draw.choice((0.001, 0.01, 0.1)),
        "pack_s": draw.choice((0.001, 0.02, 0.5)),
        "latency_s": draw.choice((0.00005, 0.001, 0.02)),
        "bytes_per_s": 10 ** draw.randint(6, 9) * draw.randint(1, 9),
        "local_latency_s": draw.choice((0.00001, 0.0002)),
        "local_bytes_per_s": 10 ** draw.randint(8, 10),
    }, allowed


def _act(here, choose_remedy):
    figures = {name: here[name] for name in FIGURES}
    here.call(choose_remedy, figures, list(here["allowed"]))


def _judge(played):
    case = played.case
    figures, allowed = {name: case[name] for name in FIGURES}, case["allowed"]
    for seen in played.seen:
        got = seen.calls[-1].result
        if got not in WAYS:
            fact = "It must return the name of a way."
            raise played.wrong("no-name", seen.rank, got=got, fact=fact)
        if got not in allowed:
            fact = f"It chooses {got}, which is not in allowed."
            raise played.wrong("not-allowed", seen.rank, fact=fact)
        worse = times_worse(got, figures, allowed)
        if worse > LIMIT:
            best_s = batch_s(got, figures) / worse
            fact = (
                f"It chooses {got}, by which a batch takes {1e3 * best_s * worse:.4g} ms. The best "
                f"one that is allowed takes {1e3 * best_s:.4g} ms."
            )
            raise played.wrong(_name(got, figures, allowed), seen.rank, fact=fact)


def _name(got, figures, allowed):
    known = [name for name in RECIPES if name not in _ALWAYS_WRONG]
    wrong = [name for name in known if got in chosen_by(name, figures, allowed)]
    if not wrong and got in chosen_by("slowest", figures, allowed):
        return "slowest"
    wrong = [one for one in wrong if not any(one in _SHARED.get(name, ()) for name in wrong)]
    # A case is drawn for one mistake; if several fit, nobody can tell which one it was.
    return wrong[0] if len(wrong) == 1 else "values"


def _draw(played):
    figures = {name: played.case[name] for name in FIGURES}
    row = {name: f"{1e3 * batch_s(name, figures):.0f} ms" for name in played.case["allowed"]}
    chosen = played.results[0]
    row[chosen] = f"{row[chosen]}, chosen"
    return holdings_picture(played.case["allowed"], [row])


choose_remedy = Task(
    number="17.2",
    name="choose_remedy",
    twice=True,
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="never more than a tenth slower than the best",
    draw=_draw,
    hints=(
        "Reckon the seconds of a batch by each way that is allowed, and take the least.",
        "Write one function for a ring: so many ranks, so many bytes, this latency, this "
        "bandwidth. Five of the six ways are a ring, in part or in whole.",
        "An all-reduce round a ring of n ranks has 2 (n - 1) messages, each of a part of the "
        "bytes. The hierarchical one has such a ring within a host, and one between hosts. top-k "
        "has n - 1 messages, each of what one rank sends.",
        "ring = 2 * (n - 1) * (latency_s + num_bytes / n / bytes_per_s); min(allowed, "
        "key=seconds.get) is the last line.",
    ),
    mistakes={
        "no-name": "Return one of the names in `allowed`, as it stands there.",
        "not-allowed": "Choose among the ways in `allowed` only: what they do to the gradient is "
        "not always wanted.",
        "slowest": "The best way is the one by which a batch takes fewest seconds.",
        "no-latency": "A message takes time even if it is short: count them, and what each waits.",
        "no-bytes": "Bytes take time, too, however few messages they come in.",
        "bits": "Bandwidth is in bytes a second here. Count bytes.",
        "no-packing": "half and top-k take time to pack: where the link is fast, that is more "
        "than they save.",
        "no-window": "accumulate and local SGD talk once for several batches: each batch has a "
        "part of that.",
        "compute-shared": "accumulate and local SGD talk more rarely, but each batch is computed: "
        "only what is sent is shared out over the batches of a window.",
        "no-local": "The hierarchical way sends within hosts, too, and that is not always quick.",
        "not-shared": "All ranks of a host send over one link at the same time: each has a part of "
        "its bandwidth.",
        "top-k-reduced": "top-k cannot add up on the way, as each rank sends other places: every "
        "rank's numbers reach every rank whole.",
        "one-message": "An average is more than one message: its parts go round the ring twice.",
        "hosts-only": "A flat ring goes through all ranks, not through one of each host.",
        "flat-by-hosts": "The flat ring, also that of accumulate and local SGD, goes through all "
        "ranks: count them, not hosts.",
        "window-of-8": "accumulate talks after every 4th batch, not more rarely.",
        "window-of-4": "local SGD talks after every 8th batch: each batch has an eighth of it.",
        "no-positions": "top-k sends for each number its position, too, in as many bytes.",
        "values": "Take one of the cases and reckon all allowed ways with a pencil: how many "
        "messages one after the other, and how long is each?",
        "raised": "The line that is named is yours. Some figures may be small, or a way may not "
        "be allowed.",
        "input-changed": "Leave the figures and the list as they are.",
        "forbidden": "Reckon it: nobody sends anything.",
    },
    allowed=(),
)
