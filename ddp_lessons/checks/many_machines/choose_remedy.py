"""
Task 17.2: which remedy for which link.

On each rank: `_act`. In the kernel: the rest.
"""

from ddp_lessons.checks.kit import Case, Mistake, Task, words
from ddp_lessons.checks.many_machines.recipes import (
    ALWAYS_WRONG,
    FIGURES,
    LIMIT,
    RECIPES,
    SHARED,
    batch_s,
    chosen_by,
    times_worse,
)
from ddp_lessons.many_machines import WAYS
from ddp_lessons.pictures import holdings_picture

# In the case drawn for a mistake, its choice takes at least this many times the best way's seconds.
_CLEARLY = 1.3
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


def _cases(draw):
    # In this case all mistakes below lead to a good choice. The cases drawn for them show them.
    yield Case(1, {**_RIGHT, "allowed": ["top-k", "flat", "half"]}, seed=0)
    for mistake in RECIPES:
        yield Case(1, _aimed_at(mistake, draw))


def _aimed_at(mistake, draw):
    """
    Draw figures for which one mistake leads to a costly choice, and the others do not.
    """
    not_asked = (mistake, *ALWAYS_WRONG, *SHARED.get(mistake, ()))
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


def _act(context, choose_remedy):
    figures = {name: context[name] for name in FIGURES}
    context.call(choose_remedy, figures, list(context["allowed"]))


def _is_slow(view):
    figures = {name: view.case[name] for name in FIGURES}
    worse = times_worse(view.got, figures, view.case["allowed"])
    taken_ms = 1e3 * batch_s(view.got, figures)
    return worse > LIMIT and (
        f"It chooses {view.got}, by which a batch takes {taken_ms:.4g} ms. The best one that is "
        f"allowed takes {taken_ms / worse:.4g} ms."
    )


def _reckons_by(*recipes):
    """
    Return a `shows` that finds a costly choice which these recipes explain, and no others.
    """

    def shows(view):
        figures, allowed = {name: view.case[name] for name in FIGURES}, view.case["allowed"]
        known = [name for name in RECIPES if name not in ALWAYS_WRONG]
        fits = [name for name in known if view.got in chosen_by(name, figures, allowed)]
        fits = [one for one in fits if not any(one in SHARED.get(name, ()) for name in fits)]
        # A case is drawn for one mistake. If several fit, the mistake cannot be known.
        return fits and {*fits} <= {*recipes} and _is_slow(view)

    return shows


def _draw(case_result):
    figures = {name: case_result.case[name] for name in FIGURES}
    row = {name: f"{1e3 * batch_s(name, figures):.0f} ms" for name in case_result.case["allowed"]}
    chosen = case_result.results[0]
    row[chosen] = f"{row[chosen]}, chosen"
    return holdings_picture(case_result.case["allowed"], [row])


choose_remedy = Task(
    number="17.2",
    name="choose_remedy",
    twice=True,
    cases=_cases,
    act=_act,
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
    mistakes=(
        Mistake(
            "not-allowed",
            "Return one of the names in `allowed`, as it stands there, and no other: what a way "
            "does to the gradient is not always wanted.",
            shows=lambda view: (
                view.got not in view.case["allowed"] and f"It returns {words(view.got)}."
            ),
        ),
        Mistake(
            "no-latency",
            "A message takes time even if it is short: count them, and what each waits.",
            shows=_reckons_by("no-latency"),
        ),
        Mistake(
            "no-bytes",
            "Bytes take time, too, however few messages they come in. Bandwidth is in bytes a "
            "second here, and not in bits.",
            shows=_reckons_by("no-bytes", "bits"),
        ),
        Mistake(
            "no-packing",
            "half and top-k take time to pack: where the link is fast, that is more than they "
            "save.",
            shows=_reckons_by("no-packing"),
        ),
        Mistake(
            "window",
            "accumulate talks once for 4 batches, and local SGD once for 8: each batch has a part "
            "of what is sent. But each batch is computed.",
            shows=_reckons_by("no-window", "compute-shared", "window-of-8", "window-of-4"),
        ),
        Mistake(
            "no-local",
            "The hierarchical way sends within hosts, too, and that is not always quick.",
            shows=_reckons_by("no-local"),
        ),
        Mistake(
            "not-shared",
            "All ranks of a host send over one link at the same time: each has a part of its "
            "bandwidth.",
            shows=_reckons_by("not-shared"),
        ),
        Mistake(
            "top-k",
            "top-k cannot add up on the way, as each rank sends other places: every rank's numbers "
            "reach every rank whole, each with its position, in as many bytes.",
            shows=_reckons_by("top-k-reduced", "no-positions"),
        ),
        Mistake(
            "ring",
            "A flat ring, also that of accumulate and local SGD, goes through all w ranks, not "
            "through one of each host. An all-reduce has 2 (w - 1) steps, and each sends a w-th "
            "of the bytes.",
            shows=_reckons_by("one-message", "hosts-only", "flat-by-hosts"),
        ),
        Mistake(
            "slowest",
            "Reckon all allowed ways of the case that is named with a pencil: how many messages "
            "one after the other, and how long is each? A step of a ring sends a w-th of the "
            "bytes.",
            shows=_is_slow,
        ),
        Mistake(
            "raised",
            "The line that is named is yours. Some figures may be small, or a way may not be "
            "allowed.",
        ),
        Mistake("forbidden", "Reckon it: nobody sends anything."),
    ),
    allowed=(),
)
