"""
Task 08.4: shards for another number of ranks.
"""

import random
from itertools import pairwise

import torch
import torch.distributed as dist

from ddp_lessons.checks.kit import Case, Task, generator
from ddp_lessons.pictures import shards_picture

_NUM_COLUMNS = 3
_BEFORE = -0.5  # what own holds before; no row has it


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


def _act(here, reshard):
    whole, start, table, reads = _rows_of(here.case), 0, [], []
    root = here.folder / f"case-{here.case.seed}"
    for number, length in enumerate(here["pieces"], start=1):
        # By their names they come in another order than by their rows.
        table.append((f"part-{len(here['pieces']) - number}.pt", start, start + length))
        start += length
    if here.rank == 0:
        root.mkdir()
        for name, start, stop in table:
            torch.save(whole[start:stop].clone(), root / name)
    # The table is in no order, as in a real one.
    random.Random(here.case.seed).shuffle(table)
    dist.barrier()

    def reader(sign):
        def read(name, start, stop):
            rows = torch.load(root / name, mmap=True, weights_only=True)
            if not 0 <= start <= stop <= len(rows):
                raise IndexError(f"{name} has rows 0 to {len(rows)} (got {start} to {stop})")
            reads.append((name, int(start), int(stop)))
            return sign * rows[start:stop]

        return read

    begin, end = _own_part(here.case, here.rank)
    own = torch.full((end - begin, _NUM_COLUMNS), _BEFORE)
    filled = own[:]  # its memory, also if `own` gets another
    starts = {name: start for name, start, _ in table}
    here.call(reshard, own, here["rows"], table, reader(sign=1))
    rows = [(starts[name] + start, starts[name] + stop) for name, start, stop in reads]
    other = torch.full_like(filled, _BEFORE)
    reshard(other, here["rows"], table, reader(sign=-1))  # pieces of another tensor
    return {"reads": rows, "filled": filled, "other": other}


def _judge(played):
    whole = _rows_of(played.case)
    filled = [seen.kept["filled"] for seen in played.seen]
    for rank, got in enumerate(filled):
        begin, end = _own_part(played.case, rank)
        expected = whole[begin:end]
        if not torch.equal(got, expected):
            numbers, right = _numbers_of_rows(got, whole), [*range(begin, end)]
            fact = "own does not hold this rank's rows. These are the numbers of the rows in it."
            mistake = _name_the_rows(numbers, right, num_rows=len(whole))
            if mistake == "empty" and any((one != _BEFORE).any() for one in filled):
                mistake = "missing-rows"  # rows that were read have come into own elsewhere
            if torch.equal(got - _BEFORE, expected):
                mistake = "added"
            raise played.wrong(mistake, rank, got=numbers, expected=right, fact=fact)
    for rank, seen in enumerate(played.seen):
        begin, end = _own_part(played.case, rank)
        num_read = sum(stop - start for start, stop in seen.kept["reads"])
        if num_read != end - begin:
            fact = f"The rows are right, but it reads {num_read}; {end - begin} are its own."
            mistake = "reads-more" if num_read > end - begin else "reads-less"
            raise played.wrong(mistake, rank, fact=fact)
        if seen.calls[0].after[2] != seen.calls[0].before[2]:
            raise played.wrong("input-changed", rank, fact="It leaves the table changed.")
        if not torch.equal(seen.kept["other"], -whole[begin:end]):
            fact = "Called once more, for another tensor whose pieces have the same names, it does "
            fact += "not fill in what read gives."
            raise played.wrong("kept", rank, fact=fact)


def _numbers_of_rows(got, whole):
    found = []
    for row in got:
        places = (whole == row).all(dim=1).nonzero().flatten().tolist()
        found.append(places[0] if places else None)
    return found


def _name_the_rows(got, expected, num_rows):
    if got and all(one is None for one in got):
        return "empty"
    rows = [row for row in got if row is not None]
    is_block = all(two - one == 1 for one, two in pairwise(rows))
    if None in got:
        is_at_end = is_block and got[0] not in (None, expected[0]) and rows[-1] == num_rows - 1
        return "other-rows" if is_at_end else "missing-rows"
    if sorted(got) == expected:
        return "order"
    return "other-rows" if is_block else "values"


def _draw(played):
    case, saved, start = played.case, [], 0
    for rank, length in enumerate(case["pieces"]):
        saved.append((rank, start, start + length))
        start += length
    loaded = [(seen.rank, *rows) for seen in played.seen for rows in sorted(seen.kept["reads"])]
    return shards_picture({"weight": case["rows"]}, {"weight": saved}, {"weight": loaded})


reshard = Task(
    number="08.4",
    ends_threads=True,
    uses_store=True,
    name="reshard",
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="each rank reads its own rows, once, and sends nothing",
    draw=_draw,
    hints=(
        "Two things are known without a message: which rows this rank needs, and which rows lie in "
        "which piece. What it reads is where the two overlap.",
        "This rank needs rows begin to begin + len(own). All ranks before it have "
        "ceil(num_rows / w) rows each, as far as rows last.",
        "Rows start to stop and begin to end overlap from max(start, begin) to min(stop, end), if "
        "the first is less than the second.",
        "A piece counts from its own first row, and own from its own: for rows low to high, own"
        "[low - begin : high - begin] = read(name, low - start, high - start).",
    ),
    mistakes={
        "reads-more": "Read only what you need: from max of the starts to min of the stops.",
        "reads-less": "Take each row of this rank from read, which counts what it gives.",
        "empty": "Write into own itself: own[first:last] = rows. A new tensor is seen by nobody.",
        "added": "own may hold anything before: put rows in its place, and do not add to it.",
        "input-changed": "Leave the table as it is: sorted() gives a list of its own.",
        "missing-rows": "Go through all pieces. A rank's rows may lie in several, of any length.",
        "order": "The table is in no order, nor are the names. Where rows go in own follows from "
        "their numbers.",
        "other-rows": "The ranks before have ceil(num_rows / w) rows each: round up, for w as many "
        "as there are. The last rank may have fewer, or none.",
        "values": "Take one piece, and write down its rows in three ways: in the whole tensor, in "
        "the piece, in own.",
        "raised": "Each rank before has ceil(num_rows / w) rows: round up. read counts rows from "
        "the first of the piece, own from its own first row. A piece may have no row that you "
        "need, and a rank may have no rows at all.",
        "forbidden": "No message is needed: every rank has the table, and can read every piece.",
    },
    allowed=(),
    in_place=True,
    returns=False,
)
