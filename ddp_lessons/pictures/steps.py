"""
A collective step by step: which rank's data are in which chunk, and what has just come in.
"""

from collections.abc import Collection, Sequence

from ddp_lessons.pictures.inputs import is_rank, need, need_some
from ddp_lessons.pictures.svg import FAINT, INK, Canvas, Picture, rank_colour, text_width

_PART, _GAP, _ROW, _LEFT, _TOP, _MOST = 12, 6, 32, 76, 46, 8
_MOST_WIDTH = 900  # what a notebook shows beside the file browser


def steps_picture(
    holdings: Sequence[Sequence[Sequence[Collection[int]]]],
    moves: Sequence[Sequence[tuple[int, int, Sequence[int], *tuple[object, ...]]]],
) -> Picture:
    """
    Draw who holds what at the start and after each step of a collective.

    A chunk is a row of small squares, one for each rank whose data are summed in it. A chunk that
    came in with the step has a thick border, and the words beside the row say from which rank.

    Args:
        holdings: For each moment, the first before any step, for each rank, for each chunk: the
            ranks whose data are in it; empty for nothing. `Schedule.holdings()` gives this, and so
            does what real ranks were seen to hold.
        moves: For each step its messages, (sender, receiver, chunks); what follows is ignored.
            `Schedule.steps` gives this.

    Returns:
        Picture: A panel for each moment, two beside each other.

    Raises:
        BadInput: There is nothing to draw, the lengths do not fit, a rank or chunk does not exist,
            or there are more than 8 ranks or chunks, for which a panel has no room.

    Lesson: 03_ring.
    """
    need_some(holdings, "moments")
    need(len(moves) == len(holdings) - 1, "Steps do not fit", f"{len(holdings) - 1} steps between "
         f"{len(holdings)} moments", len(moves), "Pass one moment more than steps")  # fmt: skip
    num_ranks, num_chunks = len(holdings[0]), _num_chunks(holdings)
    _check_moves(moves, num_ranks, num_chunks)
    lines = [[_arrivals(step, rank) for rank in range(num_ranks)] for step in ((), *moves)]
    chunk_width = num_ranks * _PART + 8
    longest = max([0, *(text_width(line, 11) for step in lines for line in step)])
    width = _LEFT + num_chunks * (chunk_width + _GAP) + longest + 12
    height = _TOP + num_ranks * _ROW + 14
    num_columns = 1 if 2 * width + 10 > _MOST_WIDTH or len(holdings) == 1 else 2
    num_rows = -(-len(holdings) // num_columns)
    canvas = Canvas(num_columns * width + 10, num_rows * height + 22)
    for moment, held in enumerate(holdings):
        x, y = moment % num_columns * width + 10, moment // num_columns * height
        arrived = set() if moment == 0 else _arrived(moves[moment - 1])
        title = {0: "start", 1: "after 1 step"}.get(moment, f"after {moment} steps")
        _panel(canvas, x, y, title, held, lines[moment], arrived, chunk_width)
    canvas.text(10, num_rows * height + 10,
                "a number: that rank's data are in the sum; thick border: just came in",
                FAINT, 11, "start")  # fmt: skip
    return canvas.picture(
        f"What {num_ranks} ranks hold in {num_chunks} chunks over {len(moves)} steps"
    )


def steps_from_digits(
    seen: Sequence[Sequence[Sequence[int]]], sources: Sequence[Sequence[int]] | None = None
) -> tuple[list[list[list[list[int]]]], list[list[tuple[int, int, list[int]]]]]:
    """
    Return the holdings and the moves that `steps_picture` draws, from what real ranks held.

    Rank r puts 10**r into every chunk. A sum then has a digit 1 for each rank whose data are in it:
    1011 has those of ranks 0, 1 and 3.

    Args:
        seen: For each rank, for each moment, its chunks: one number each.
        sources: For each rank, for each step, the rank from which a message came. None stands for
            a ring, in which a message for rank r comes from rank r - 1.

    Returns:
        tuple: (holdings, moves), as `steps_picture` takes them. A chunk came in with a step if its
            number changed.
    """
    everyone = range(len(seen))
    holdings = [
        [[[r for r in everyone if number // 10**r % 10] for number in chunks] for chunks in ranks]
        for ranks in zip(*seen, strict=True)
    ]
    moves = []
    for k in range(1, len(holdings)):
        pairs = [list(zip(holdings[k - 1][r], holdings[k][r], strict=True)) for r in everyone]
        came = [[c for c, (old, new) in enumerate(row) if old != new] for row in pairs]
        left = [(r - 1) % len(seen) for r in everyone]
        senders = left if sources is None else [sources[r][k - 1] for r in everyone]
        moves.append([(senders[r], r, came[r]) for r in everyone])
    return holdings, moves


def _panel(canvas, left, top, title, held, lines, arrived, chunk_width):
    canvas.text(left, top + 18, title, anchor="start", bold=True)
    for chunk in range(len(held[0])):
        x = left + _LEFT - 10 + chunk * (chunk_width + _GAP) + chunk_width / 2
        canvas.text(x, top + 37, f"chunk {chunk}", FAINT, 11)
    for rank, row in enumerate(held):
        y = top + _TOP + rank * _ROW
        canvas.chip(left, y + 2, rank, width=62, height=24)
        for chunk, parts in enumerate(row):
            x = left + _LEFT - 10 + chunk * (chunk_width + _GAP)
            new = (rank, chunk) in arrived
            canvas.box(x, y + 2, chunk_width, 24, fill="#ffffff", radius=4,
                       stroke=INK if new else FAINT, stroke_width=2.5 if new else 1,
                       dashed=not parts)  # fmt: skip
            for part in parts:
                at = x + 4 + part * _PART
                canvas.box(at + 0.5, y + 5, _PART - 1, 18, fill=rank_colour(part), stroke="none",
                           radius=2)  # fmt: skip
                canvas.text(at + _PART / 2, y + 14, part, "#ffffff", 11, bold=True)
        end = left + _LEFT - 10 + len(row) * (chunk_width + _GAP)
        canvas.text(end, y + 14, lines[rank], FAINT, 11, "start")


def _num_chunks(holdings):
    num_ranks = len(holdings[0])
    need_some(holdings[0], "ranks")
    num_chunks = len(holdings[0][0])
    shapes = {tuple(len(row) for row in held) for held in holdings}
    need(shapes == {(num_chunks,) * num_ranks}, "Moments differ",
         f"{num_chunks} chunks on each of {num_ranks} ranks", "other numbers of them",
         "Pass all chunks of all ranks at each moment")  # fmt: skip
    need(num_ranks <= _MOST and 1 <= num_chunks <= _MOST, "No room",
         f"1 to {_MOST} ranks and chunks", f"{num_ranks} and {num_chunks}",
         "Draw a smaller group")  # fmt: skip
    for held in holdings:
        for rank, row in enumerate(held):
            for parts in row:
                need(all(is_rank(part) and part < num_ranks for part in parts), "No such rank",
                     f"ranks from 0 to {num_ranks - 1} in a chunk",
                     f"{list(parts)!r} on rank {rank}", "Pass ranks")  # fmt: skip
    return num_chunks


def _check_moves(moves, num_ranks, num_chunks):
    for number, step in enumerate(moves, start=1):
        for sender, receiver, chunks, *_ in step:
            ranks = is_rank(sender) and is_rank(receiver) and max(sender, receiver) < num_ranks
            need(ranks and all(is_rank(chunk) and chunk < num_chunks for chunk in chunks),
                 "No such message", f"ranks below {num_ranks} and chunks below {num_chunks}",
                 f"{sender!r} to {receiver!r}, chunks {list(chunks)!r}, step {number}",
                 "Pass what was sent")  # fmt: skip


def _arrived(step):
    return {(receiver, chunk) for _, receiver, chunks, *_ in step for chunk in chunks}


def _arrivals(step, rank):
    # Which chunks came is what the thick borders say.
    senders = dict.fromkeys(sender for sender, receiver, *_ in step if receiver == rank)
    return f"from rank {', '.join(map(str, senders))}" if senders else ""
