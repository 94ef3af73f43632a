"""
Words for ranks, their calls and their places: what a diagnosis and its table are told in.
"""

POINT_TO_POINT = {"send", "recv"}
INDIRECT = {"backward", "wait", "DDP forward"}
FORMING = {"init_process_group", "new_group", "new_subgroups", "split_group"}


def rank_names(ranks):
    """
    Return "rank 2", "ranks 0 and 1", "ranks 0, 1 and 3" or "ranks 0-3".
    """
    ranks = sorted(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]}-{ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def last_collective(place):
    """
    Return the last collective that a rank has called in its cell, or None.
    """
    return place["collectives"][-1] if place and place["collectives"] else None


def call_name(place):
    """
    Return "all_reduce 3": the call that a place waits in, with its number in its group.
    """
    call, last = place["call"], last_collective(place)
    if call in POINT_TO_POINT or call in FORMING or last is None:
        return call
    if call in INDIRECT or call == last["name"]:
        within = f" in {call}" if call in INDIRECT else ""
        return f"{last['name']} {last['number']}{within}"
    return call


def stall_table(places, running, waits_for):
    """
    Return the stall table: each rank, its line, its call, and whom it waits for.

    Args:
        places: For each rank of the cell, its place or None.
        running: The ranks that have not finished it.
        waits_for: For each running rank, the ranks it waits for.
    """
    rows = [("rank", "line", "in", "waits for")]
    for rank in sorted(places):
        place = places[rank]
        if rank not in running:
            last = last_collective(place)
            done = f"last: {last['name']} {last['number']}" if last else "-"
            rows.append((str(rank), "finished", done, "-"))
        elif place is None:
            rows.append((str(rank), "?", "does not answer", "?"))
        else:
            line = f"{place['line']}: {place['code']}" if place["line"] else place["function"]
            call = call_name(place) if place["call"] else "no communication"
            peers = ", ".join(map(str, waits_for[rank])) or "-"
            rows.append((str(rank), line, call, peers))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
