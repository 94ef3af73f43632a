"""
The conclusion of a cell: from the outcome on each rank to one error, or none.
"""

from ddp_lessons.errors import CellStopped, RankDied, RankRaised, RanksGone
from ddp_lessons.ranks.diagnosis import cell_report
from ddp_lessons.ranks.diagnosis.cell_report import DIED, GIVEN_UP, OK, RAISED, RELEASED, Outcome
from ddp_lessons.ranks.diagnosis.wait_graph import diagnose
from ddp_lessons.ranks.diagnosis.wording import rank_names
from ddp_lessons.ranks.diagnosis.wrong_side_hints import hints_on_ranks


def ranks_are_gone(ranks):
    """
    Return the error for ranks that cannot run a cell any more.

    Args:
        ranks: The Ranks.
    """
    if ranks.parked_after_min is not None:
        return RanksGone(
            "The ranks were parked: they end, and their variables with them, when no cell is run "
            f"for {ranks.parked_after_min:g} min. Run start_ranks() again, then the cells that you "
            "need."
        )
    if ranks.engines.loss:
        return RanksGone(lost_message(ranks.engines.loss))
    return RanksGone("The ranks are gone: stopped, or ended from outside. Run start_ranks() again.")


def lost_message(loss):
    """
    Return the message that says what has ended all ranks.

    Args:
        loss: Words for the cause (see `RankProcesses.loss`).
    """
    return (
        f"The ranks are gone, and their variables with them: {loss}. Run start_ranks() again, then "
        "the cells that you need."
    )


def finish_cell(ranks, outcomes, stall_monitor, stopped):
    """
    Recover the ranks after a cell, and return the error that says what went wrong.

    Args:
        ranks: The Ranks.
        outcomes: For each rank of the cell its Outcome. A kind may be changed to GIVEN_UP.
        stall_monitor: The StallMonitor of the cell.
        stopped: Whether Stop was pressed.

    Returns:
        DDPLessonsError or None: The error to raise; None if all went well.
    """
    if not ranks.alive:
        return ranks_are_gone(ranks)
    _note_hosts(ranks, outcomes)
    kinds = {outcome.kind for outcome in outcomes.values()}
    alike = len({outcome.digest for outcome in outcomes.values()}) == 1
    if kinds == {OK} and not stopped and stall_monitor.unblocker is not None:
        print("Ranks were stuck in a call from before this cell, and were released.")
        print("\n".join(ranks.recover().sentences()))
        return None
    if kinds == {OK} and not stopped and alike:
        return None
    snapshots = {
        r: snapshot for r, snapshot in stall_monitor.all_snapshots([]).items() if r in outcomes
    }
    mismatch = diagnose(snapshots, []).sentence
    if kinds == {OK} and not stopped and not mismatch:
        return None
    # If all ranks raised by themselves after the same collectives, their group is still usable.
    in_order = kinds == {RAISED} and not mismatch and _same_collectives(snapshots)
    if ranks.engines.lost_hosts:
        done = _postpone(ranks)
    else:
        recovery = ranks.recover(regroup=not in_order or stall_monitor.unblocker is not None)
        for rank in recovery.replaced:  # a released rank that could not leave its group
            if rank in outcomes and outcomes[rank].kind == RELEASED:
                outcomes[rank].kind = GIVEN_UP
        done = recovery.sentences()
    kind, head, traceback = _kind_and_head(outcomes, kinds, stall_monitor, stopped, mismatch)
    given_up = cell_report.given_up_message(outcomes)
    # A desync may have caused a death: Gloo aborts a process that receives more than it expects.
    cause = f"Before that, {mismatch}." if mismatch and DIED in kinds and not stopped else ""
    lines = [head, cause, "" if given_up == head else given_up]
    lines += [*hints_on_ranks(outcomes), cell_report.victims_sentence(outcomes), *done]
    return kind("\n".join(line for line in lines if line), traceback)


def _note_hosts(ranks, outcomes):
    # Note the hosts before the recovery, because a new process may start on another host.
    hosts, silent = ranks.engines.hosts, ranks.engines.silent
    answering = {host for rank, host in hosts.items() if rank not in silent}
    for rank, host in hosts.items():
        if rank in outcomes:
            outcomes[rank].host = host
            if rank in silent:
                outcomes[rank].silent = "it" if host in answering else host


def _same_collectives(snapshots):
    called = {
        str([(collective["group"], collective["number"]) for collective in snapshot["collectives"]])
        for snapshot in snapshots.values()
        if snapshot is not None
    }
    return len(called) <= 1


def _kind_and_head(outcomes, kinds, stall_monitor, stopped, mismatch):
    if stopped:
        return CellStopped, _stop_head(outcomes, stall_monitor), ()
    if stall_monitor.deadlocked:
        diagnosis = stall_monitor.diagnosis
        return RankRaised, f"Deadlock: {diagnosis.sentence}.\n{diagnosis.table}", ()
    if DIED in kinds:
        return RankDied, cell_report.died_message(outcomes), ()
    if RAISED in kinds:
        return RankRaised, *cell_report.raised_message(outcomes)
    if GIVEN_UP in kinds:
        return RankDied, cell_report.given_up_message(outcomes), ()
    return RankRaised, f"{mismatch}. What came out is not to be trusted.", ()


def _stop_head(outcomes, stall_monitor):
    if any(outcome.kind == RAISED for outcome in outcomes.values()):
        return cell_report.raised_message(outcomes)[0]
    if stall_monitor.diagnosis is not None and stall_monitor.diagnosis.sentence:
        return f"Stopped: {stall_monitor.diagnosis.sentence}."
    at = {}
    for rank, snapshot in stall_monitor.last_snapshots.items():
        if snapshot and snapshot["line"]:
            at.setdefault((snapshot["line"], snapshot["code"]), []).append(rank)
    parts = [
        f"{rank_names(ranks)} {'was' if len(ranks) == 1 else 'were'} at line {line}: {code}"
        for (line, code), ranks in at.items()
    ]
    return f"Stopped: {'; '.join(parts) or f'{rank_names(outcomes)} did not answer'}."


def ensure_ready(ranks):
    """
    Make the ranks ready for a cell: replace dead ranks already reported, and regroup if needed.

    Raises:
        RanksGone: The ranks were stopped, or have died with their supervisor or launcher.
        RankDied: Ranks have died since the last cell. They are replaced, but the cell is not run,
            because the new ranks lack their variables.
    """
    if not ranks.alive:
        raise ranks_are_gone(ranks)
    dead = set(ranks.dead)
    if dead - ranks.reported_dead:
        raise _tell_of_the_dead(ranks)
    if dead or not ranks.is_consistent:  # inconsistent: a join was stopped half-way, or postponed
        print("\n".join(ranks.recover().sentences()))


def _tell_of_the_dead(ranks):
    deaths = {
        rank: Outcome(DIED, exit_code=ranks.supervisor.last_death.get(rank, (None, None))[1])
        for rank in ranks.dead
    }
    _note_hosts(ranks, deaths)
    done = _postpone(ranks) if ranks.engines.lost_hosts else ranks.recover().sentences()
    lines = [
        cell_report.died_message(deaths),
        *done,
        "This cell was not run: run the cells that this rank needs, then this one again.",
    ]
    return RankDied("\n".join(lines))


def _postpone(ranks):
    """
    Postpone the replacement of dead ranks to the next cell.

    A launcher may take long to give up a host that is gone.

    Returns:
        list[str]: Lines of a message about it.
    """
    ranks.reported_dead, ranks.is_consistent = frozenset(ranks.dead), False
    hosts = " and ".join(ranks.engines.lost_hosts)
    return [
        f"No rank on {hosts} is left. The next cell begins with new processes for "
        f"{rank_names(ranks.reported_dead)}, there or on another host, and a new group."
    ]
