"""
Task 08.4: shards for another number of ranks than the one that saved them.

On each rank: `_act`; in both: `_rows_of`, `_own_part`. In the kernel: the rest.
"""

import random
from dataclasses import replace
from itertools import pairwise

import torch
import torch.distributed as dist

from ddp_lessons.checks.kit import VALUES, Case, Expected, Mistake, Task, generator
from ddp_lessons.pictures import shards_picture

_NUM_COLUMNS = 3
_BEFORE = -0.5  # the numbers in own before; no row has them


def _cases(draw):
    yield Case(2, {"rows": 10, "pieces": [3, 3, 3, 1]}, seed=0)
    yield Case(4, {"rows": 5, "pieces": [2, 3]})
    for world_size in (1, 3, 4):
        pieces = [draw.randint(1, 6) for _ in range(draw.randint(2, 5))] + [0]
        draw.shuffle(pieces)
        yield Case(world_size, {"rows": sum(pieces), "pieces": pieces})


def _rows_of(case):
    numbers = torch.arange(case["rows"])[:, None] * 10 + torch.arange(_NUM_COLUMNS)
    shift = torch.randint(1, 100, (), generator=generator(case))
    return (numbers + shift * 1000).float()


def _own_part(case, rank):
    size = -(-case["rows"] // case.world_size)
    return tuple(min(place * size, case["rows"]) for place in (rank, rank + 1))


def _act(context, reshard):
    whole, start, table, reads = _rows_of(context.case), 0, [], []
    root = context.folder / f"case-{context.case.seed}"
    for number, length in enumerate(context["pieces"], start=1):
        # Sorted by name, the pieces are in another order than by rows.
        table.append((f"part-{len(context['pieces']) - number}.pt", start, start + length))
        start += length
    if context.rank == 0:
        root.mkdir()
        for name, start, stop in table:
            torch.save(whole[start:stop].clone(), root / name)
    # The table is in random order. A real table has no order, either.
    random.Random(context.case.seed).shuffle(table)
    dist.barrier()

    def reader(sign):
        def read(name, start, stop):
            rows = torch.load(root / name, mmap=True, weights_only=True)
            if not 0 <= start <= stop <= len(rows):
                raise IndexError(f"{name} has rows 0 to {len(rows)} (got {start} to {stop})")
            reads.append((name, int(start), int(stop)))
            return sign * rows[start:stop]

        return read

    begin, end = _own_part(context.case, context.rank)
    own = torch.full((end - begin, _NUM_COLUMNS), _BEFORE)
    filled = own[:]  # keeps the first memory, even if `own` gets another
    starts = {name: start for name, start, _ in table}
    context.call(reshard, own, context["rows"], table, reader(sign=1))
    rows = [(starts[name] + start, starts[name] + stop) for name, start, stop in reads]
    other = torch.full_like(filled, _BEFORE)
    reshard(other, context["rows"], table, reader(sign=-1))  # pieces of another tensor
    return {"reads": rows, "filled": filled, "other": other}


def _numbers_of_rows(view):
    """
    Return for each row of own the number of that row in the whole tensor, or -1 for no such row.
    """
    same = (view.output["filled"][:, None] == _rows_of(view.case)).all(-1)  # (k, num_rows)
    return torch.where(same.any(1), same.int().argmax(1), -1)


def _own_numbers(case, rank):
    return torch.arange(*_own_part(case, rank))


def _adds(view):
    return view.is_off and torch.equal(
        view.output["filled"] - _BEFORE,
        _rows_of(view.case)[slice(*_own_part(view.case, view.rank))],
    )


def _fills_nothing(view):
    filled = [seen.output["filled"] for seen in view.case_result.seen]
    return view.is_off and all((one == _BEFORE).all() for one in filled)


def _splits_otherwise(view):
    """
    Tell whether the ranks' rows are contiguous blocks that begin at other rows than the right ones.
    """
    blocks = [sorted(seen.output["reads"]) for seen in view.case_result.seen]
    ends = [(rows[0][0], rows[-1][1]) for rows in blocks if rows]
    cuts = {_own_part(view.case, rank)[0] for rank in range(view.case.world_size)}
    starts_elsewhere = any(low not in cuts for low, _ in ends)
    meet = all(one[1] == other[0] for one, other in pairwise(ends))
    got = view.got[view.got >= 0]
    is_block = len(got) > 0 and bool((got.diff() == 1).all())
    is_last = is_block and (len(got) == len(view.got) or got[-1] == view.case["rows"] - 1)
    is_shifted = is_last and view.got[0] not in (-1, view.expected[0])
    return view.is_off and is_block and (is_shifted or (starts_elsewhere and meet))


def _reads_otherwise(view):
    begin, end = _own_part(view.case, view.rank)
    num_read = sum(stop - start for start, stop in view.output["reads"])
    if num_read == end - begin:
        return ""
    return f"The rows are right, but this rank reads {num_read} rows, and needs {end - begin}."


def _fills_old_rows(view):
    rows = _rows_of(view.case)[slice(*_own_part(view.case, view.rank))]
    return not torch.equal(view.output["other"], -rows)


def _draw(case_result):
    case, saved, start = case_result.case, [], 0
    for rank, length in enumerate(case["pieces"]):
        saved.append((rank, start, start + length))
        start += length
    loaded = [
        (seen.rank, *rows) for seen in case_result.seen for rows in sorted(seen.output["reads"])
    ]
    return shards_picture({"weight": case["rows"]}, {"weight": saved}, {"weight": loaded})


reshard = Task(
    number="08.4",
    must_join_threads=True,
    uses_store=True,
    name="reshard",
    cases=_cases,
    act=_act,
    ok="each rank reads its own rows, once, and sends nothing",
    draw=_draw,
    hints=(
        "Each rank knows two things without a message: which rows it needs, and which rows are in "
        "which piece. It reads the rows in which the two overlap.",
        "This rank needs rows begin to begin + len(own). All ranks before it have "
        "ceil(num_rows / w) rows each, as far as rows last.",
        "Rows start to stop and begin to end overlap from max(start, begin) to min(stop, end), if "
        "the first is less than the second.",
        "A piece counts from its own first row, and so does own: for rows low to high, own[low - "
        "begin : high - begin] = read(name, low - start, high - start).",
    ),
    expected=Expected(_own_numbers, gave=_numbers_of_rows),
    mistakes=(
        Mistake(
            "added",
            "own may hold any numbers before the call: overwrite them, and do not add to them.",
            "own holds the sum of its rows and of its earlier numbers.",
            shows=_adds,
        ),
        Mistake(
            "empty",
            "Write into own itself: own[first:last] = rows. The caller never sees a new tensor.",
            "The argument own is unchanged on every rank.",
            shows=_fills_nothing,
        ),
        Mistake(
            "other-rows",
            "Each rank has ceil(num_rows / w) rows, as far as rows last: round up, and let w be "
            "the current world size. The last ranks may have fewer rows, or none.",
            "own holds rows of another rank. These are their numbers.",
            shows=_splits_otherwise,
        ),
        Mistake(
            "order",
            "Neither the table nor the names are in order. The place of a row in own follows from "
            "the number of the row.",
            "own holds its rows in another order. These are their numbers.",
            shows=lambda view: view.is_off and torch.equal(view.got.sort().values, view.expected),
        ),
        Mistake(
            "missing-rows",
            "Go through all pieces, of any length, and take all rows of this rank.",
            "own lacks some of its rows. These are the numbers of the rows in it, -1 for none.",
            shows=lambda view: view.is_off and bool((view.got < 0).any()),
        ),
        replace(
            VALUES,
            hint="Take one piece, and write down the numbers of its rows in three ways: in the "
            "whole tensor, in the piece, and in own.",
            symptom="own does not hold this rank's rows. These are the numbers of the rows in it.",
        ),
        Mistake(
            "reads",
            "Read each row of this rank once, and no other row: from max of the starts to min of "
            "the stops.",
            shows=_reads_otherwise,
        ),
        Mistake(
            "input-changed",
            "Leave the table as it is: sorted() returns a new list.",
            "It changes the table.",
            shows=lambda view: view.seen.calls[0].after[2] != view.seen.calls[0].before[2],
        ),
        Mistake(
            "kept",
            "Read the rows again in each call: keep nothing from one call to the next.",
            "A second call, for another tensor whose pieces have the same names, does not fill own "
            "with the rows that read returns.",
            shows=_fills_old_rows,
        ),
        Mistake(
            "raised",
            "Each rank before this one has ceil(num_rows / w) rows: round up. read counts rows "
            "from the first row of the piece, and own counts from its own first row. A piece may "
            "have no row that you need, and a rank may have no rows at all.",
        ),
        Mistake(
            "forbidden",
            "No message is needed: every rank has the table, and can read every piece.",
        ),
    ),
    allowed=(),
    in_place=True,
    must_return=False,
)
