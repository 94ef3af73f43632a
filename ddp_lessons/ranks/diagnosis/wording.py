"""
Words for ranks, their calls and their places: what a diagnosis and its table are told in.
"""

POINT_TO_POINT = {"send", "recv"}
STORE = "store"
COMPUTING = {"backward", "DDP forward"}
"""
Calls that compute, and wait for collectives of their own now and then.
"""
INDIRECT = {*COMPUTING, "wait"}
JOIN = "init_process_group"
FORMING = {JOIN, "new_group", "new_subgroups", "split_group"}
POLLING = {*FORMING, STORE}
"""
Calls that wait for a store, which may be a file that is looked at again and again.
"""


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


def operation(place):
    """
    Return "recv" also for who waits for the handle of an irecv; else the call.
    """
    return place["operation"] or place["call"]


def call_name(place):
    """
    Return "all_reduce 3": the call that a place waits in, with its number in its group.
    """
    call, last = place["call"], last_collective(place)
    if place["operation"]:
        begun = f"i{place['operation']}"
        return call if call == begun else f"{begun} in {call}"
    if call == STORE:
        return call
    if call in POINT_TO_POINT or call in FORMING or last is None:
        return call
    if call in INDIRECT or call == last["name"]:
        within = f" in {call}" if call in INDIRECT else ""
        return f"{last['name']} {last['number']}{within}"
    return call


def helpers_clause(places):
    """
    Return "; rank 0 has a thread that may still act", for a sentence's end, or "".
    """
    owners = {}
    for rank, place in places.items():
        for helper in (place and place["helpers"]) or ():
            owners.setdefault(helper, []).append(rank)
    clauses = ""
    for helper, ranks in owners.items():
        have = "has" if len(ranks) == 1 else "have"
        clauses += f"; {rank_names(ranks)} {have} a {helper} that may still act"
    return clauses


def stall_table(places, running, waits_for, halts):
    """
    Return the stall table: each rank, its line, its call, and whom it waits for.

    Args:
        places: For each rank of the cell, its place or None. Where there are several hosts, the
            place has its `host`.
        running: The ranks that have not finished it.
        waits_for: For each running rank that is not halted, the ranks it waits for.
        halts: For each halted rank that runs the cell or does not answer, what halts it, in words.
    """
    rows = [("rank", "line", "in", "waits for")]
    hosts = {rank: place["host"] for rank, place in places.items() if place and "host" in place}
    names = {rank: f"{rank} on {hosts[rank]}" if rank in hosts else str(rank) for rank in places}
    awaited = {peer for peers in waits_for.values() for peer in peers}
    for rank in sorted(places):
        place = places[rank]
        if rank not in running and place and place.get("outside"):
            if rank in awaited:
                rows.append((names[rank], "not in this cell", "-", "-"))
        elif rank not in running and rank not in halts:
            last = last_collective(place)
            done = f"last: {last['name']} {last['number']}" if last else "-"
            rows.append((names[rank], "finished", done, "-"))
        elif place is None:
            rows.append((names[rank], "?", halts.get(rank, "does not answer"), "?"))
        elif rank in halts:
            rows.append((names[rank], _line(place), halts[rank], "-"))
        else:
            call = call_name(place) if place["call"] else "no communication"
            if place.get("module"):
                call += f" at {place['module']}"
            peers = ", ".join(map(str, waits_for[rank])) or "-"
            rows.append((names[rank], _line(place), call, peers))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _line(place):
    return f"{place['line']}: {place['code']}" if place["line"] else place["function"]
