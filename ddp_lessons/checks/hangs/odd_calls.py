"""
Task 10.3: compare what ranks have called before they wait.

On each rank: `_act`; in both: `Planned`, `_plain`, `_odd`, `planned`. In the kernel: the rest.
"""

import time
from dataclasses import dataclass
from datetime import timedelta
from random import Random

import torch
import torch.distributed as dist

from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.hangs import Call, odd_ranks
from ddp_lessons.pictures import holdings_picture

_LATE_S, _VERY_LATE_S = 0.03, 2.2  # a FileStore counts whole seconds: 1 s can take 2 s
_MOST_BYTES = 200
_OVERHEAD_BYTES = 120  # of a key and its name in the file of a FileStore
_LARGE = 4096


@dataclass(frozen=True)
class Planned:
    """
    The call that a rank is about to make.
    """

    name: str
    shape: tuple | None = None
    dtype: torch.dtype | None = None
    root: int | None = None

    @property
    def call(self):
        """
        The same call as a Call of `ddp_lessons.hangs`, to compare it with others.
        """
        tensor = None if self.shape is None else torch.empty(self.shape, dtype=self.dtype)
        return Call.of(self.name, tensor, self.root)


def _plain(rng):
    return Planned("all_reduce", (rng.randint(4, 9),), torch.float32)


def _odd(usual, rng, what):
    length = usual.shape[0]
    return {
        "sizes": Planned("all_reduce", (length + 1,), torch.float32),
        "names": Planned("all_gather", usual.shape, torch.float32),
        "dtypes": Planned("all_reduce", usual.shape, torch.int32),  # as many bytes
        "barrier": Planned("barrier"),
    }[what]


def planned(case):
    """
    Return a list for each call of a case: the Planned call of each rank, in rank order.

    Args:
        case: The Case. Its `calls` name for each call how ranks differ in it.
    """
    rng, w, found, turned = Random(case.seed), case.world_size, [], []
    for what in case["calls"]:
        usual = _plain(rng)
        plan = [usual] * w
        if what == "shapes":
            even = Planned("all_reduce", (2, 3 * w), torch.float32)
            plan = [
                even if r % 2 else Planned("all_reduce", (6 * w,), torch.float32) for r in range(w)
            ]
        elif what == "large":
            plan = [Planned("all_reduce", (_LARGE,), torch.float64)] * w
        elif what == "roots":
            away = rng.randrange(w)
            plan = [Planned("broadcast", (5,), torch.float32, int(r == away)) for r in range(w)]
        elif what == "rank 0":
            plan[0] = _odd(usual, rng, "sizes")
        elif what == "draw":
            pair = {*rng.sample(range(w), w // 2)}
            other = _odd(usual, rng, rng.choice(("sizes", "names", "dtypes")))
            plan = [other if r in pair else usual for r in range(w)]
            turned = [usual if r in pair else other for r in range(w)]
        elif what == "turned draw":  # sorting the texts is right in one draw only
            plan = turned
        elif what == "no root":
            plan = [Planned("broadcast", (5,), torch.float32, 0)] * w
            plan[rng.randrange(w)] = Planned("broadcast", (5,), torch.float32)
        elif what == "all differ":
            plan = [Planned("all_reduce", (3 + r,), torch.float32) for r in range(w)]
        elif what != "alike":
            plan[rng.randrange(w)] = _odd(usual, rng, what)
        found.append(plan)
    return found


def _cases(draw):
    yield Case(4, {"calls": ["sizes"]}, seed=0)
    yield Case(1, {"calls": ["alike"]})
    kinds = ["names", "dtypes", "roots", "barrier", "shapes", "rank 0"]
    draw.shuffle(kinds)
    yield Case(4, {"calls": ["large", *kinds, "draw", "turned draw", "no root"]})
    calls = ["all differ", "alike", draw.choice(kinds[:2])]
    yield Case(3, {"calls": calls, "late": "over two seconds"})  # a short time limit would expire
    yield Case(2, {"calls": ["draw", "turned draw", "shapes"]})


def _act(context, answer):
    path = context.folder / f"calls-{context.case.seed}-{context.world_size}"
    store, sizes = dist.FileStore(str(path)), []
    store.set_timeout(timedelta(seconds=5))  # for an answer that waits for a key in vain
    late = Random(context.case.seed).randrange(context.world_size)
    for number, plan in enumerate(planned(context.case), start=1):
        own = plan[context.rank]
        tensor = None
        if own.shape is not None:
            tensor = torch.ones(own.shape, dtype=own.dtype, device=context.device)
        dist.barrier()
        before = path.stat().st_size if path.exists() else 0
        dist.barrier()
        # The others wait for this rank's key. A key without `number` still holds its previous call.
        if context.rank == late:
            is_very_late = number == 1 and "late" in context.case.data
            time.sleep(_VERY_LATE_S if is_very_late else _LATE_S)
        context.call(answer, own.name, tensor, own.root, store, number)
        dist.barrier()
        sizes.append((path.stat().st_size if path.exists() else 0) - before)
    return sizes


def _judge(case_result):
    w = case_result.case.world_size
    for number, plan in enumerate(planned(case_result.case)):
        what = case_result.case["calls"][number]
        calls = [one.call for one in plan]
        expected = odd_ranks(calls)
        results = [seen.calls[number].result for seen in case_result.seen]
        for rank, got in enumerate(results):
            if not isinstance(got, list) or any(type(one) is not int for one in got):
                fact = "It must return a list of ranks."
                raise case_result.wrong("no-list", rank, got=got, expected=expected, fact=fact)
        told = "; ".join(f"rank {rank} {call}" for rank, call in enumerate(calls))
        fact = f"They were about to call: {told}."
        for rank, got in enumerate(results):
            if got != expected:
                mistake = _why_unlike(what, calls, expected, results, got)
                raise case_result.wrong(mistake, rank, got=got, expected=expected, fact=fact)
        num_bytes = case_result.seen[0].output[number]
        if num_bytes > w * (_MOST_BYTES + _OVERHEAD_BYTES):
            fact = f"The {w} ranks wrote {num_bytes} bytes into the store in one call."
            raise case_result.wrong("heavy", fact=fact)


def _why_unlike(what, calls, expected, results, got):
    usual = sorted({*range(len(calls))} - {*expected})
    if sorted({*got}) == expected:
        return "order"
    if any(other != got for other in results):
        return "not-the-same"
    if what in ("shapes", "large", "alike"):
        return "shape"
    if what in ("draw", "turned draw", "all differ"):
        return "draw"
    if what == "no root" and not got:
        return "root-0"
    if expected == [0] and got == usual:
        return "first"
    if got == usual:
        return "wrong-side"
    return "values" if {*got} - {*expected} else "unseen"


def _draw(case_result):
    plan = planned(case_result.case)[0]
    held = [
        {"is about to call": str(one.call), "odd": str(result)}
        for one, result in zip(plan, case_result.results, strict=True)
    ]
    return holdings_picture(["is about to call", "odd"], held)


odd_calls = Task(
    number="10.3",
    name="odd_calls",
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="all calls compared, and none made",
    draw=_draw,
    hints=(
        "What would you write on a slip of paper for the others, so that they know whether your "
        "call fits theirs? Not the tensor.",
        "Put a text of name, number of elements, dtype and root under a key that holds the number "
        "of the call and your rank. store.get waits for a key.",
        "Now every rank has the same list of texts. Count how often each occurs.",
        "usual = max(texts, key=texts.count) takes the first of those that occur most often.",
    ),
    mistakes={
        "no-list": "Return a list of ranks; an empty one if all calls are alike.",
        "order": "Return the ranks in rising order, each once.",
        "shape": "Calls are alike if name, number of elements, dtype and root are. The shape "
        "does not count.",
        "unseen": "Name, number of elements, dtype and root all belong to a call. Which of them do "
        "you not compare?",
        "root-0": "Rank 0 may be the root, and that is not the same as to have none. In an `if`, 0 "
        "and None count alike: ask `is None`.",
        "wrong-side": "Return those that are not like most, and not those that are.",
        "first": "Rank 0 may be the odd one: ask which call occurs most often.",
        "not-the-same": "The list is the same on every rank: ask which call occurs most often, and "
        "not which is like this rank's. And put `number` into each key, or a rank may read what "
        "another left there in an earlier call.",
        "own-order": "hash() of a text is another number in each process, as Python salts it. "
        "Compare the texts themselves, or take a hash of hashlib.",
        "draw": "Among calls that are equally frequent, the one of the lowest rank counts.",
        "heavy": "Leave a few words about the tensor, not the tensor.",
        "forbidden": "The others may be about to call something else, so no call to them can be "
        "trusted. Talk through the store.",
        "raised": "A line that is named is yours. A tensor may be None. Or store.get waited for a "
        "key in vain: each rank must leave its own first, under the name that others read. Or you "
        "gave up too soon: a rank may come seconds after the others.",
        "values": "Write down the texts of all ranks for the smallest case that fails.",
    },
    allowed=(),
    extra_time_s=3.0,
)
