"""
Recovery: what the kernel does before and after a cell, so that the next one finds usable ranks.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from ddp_lessons.ranks.diagnosis.conclusion import (
    Evidence,
    conclude,
    deaths_message,
    gone_error,
    postponed_sentence,
)
from ddp_lessons.ranks.messages.outcome import DIED, Outcome

if TYPE_CHECKING:
    from ddp_lessons.errors import DDPLessonsError, RanksGone
    from ddp_lessons.ranks.kernel.ranks import Ranks
    from ddp_lessons.ranks.kernel.stall_monitor import StallMonitor


def ranks_are_gone(ranks: Ranks) -> RanksGone:
    """
    Return the error for Ranks that cannot run a cell any more.
    """
    return gone_error(ranks.parked_after_min, ranks.engines.loss)


def ensure_ready(ranks: Ranks) -> None:
    """
    Make the ranks ready for a cell: replace dead ranks that a message has named, regroup if needed.

    Raises:
        RanksGone: The ranks were stopped, or have died with their supervisor or launcher.
        RankDied: Ranks have died since the last cell. They are replaced, but the cell is not run,
            because the new ranks lack their variables.
    """
    if not ranks.alive:
        raise ranks_are_gone(ranks)
    dead = set(ranks.dead)
    if dead - ranks.reported_dead:
        deaths = {
            rank: Outcome(DIED, exit_code=ranks.supervisor.last_death.get(rank, (None, None))[1])
            for rank in ranks.dead
        }
        deaths = _with_hosts(ranks, deaths)
        raise deaths_message(deaths, _replace_dead(ranks, is_postponed=ranks.engines.lost_hosts))
    if dead or not ranks.is_consistent:  # inconsistent: a join was stopped half-way, or postponed
        print("\n".join(ranks.recover().sentences()))


def finish_cell(
    ranks: Ranks, outcomes: dict[int, Outcome], stall_monitor: StallMonitor, stopped: bool
) -> DDPLessonsError | None:
    """
    Recover the ranks after a cell, and return the error that says what went wrong.

    Args:
        ranks: The Ranks.
        outcomes: For each rank of the cell its Outcome, without its host.
        stall_monitor: The StallMonitor of the cell.
        stopped: Whether Stop was pressed.

    Returns:
        DDPLessonsError or None: The error to raise; None if all went well.
    """
    if not ranks.alive:
        return ranks_are_gone(ranks)
    evidence = Evidence(
        _with_hosts(ranks, outcomes),
        was_stopped=stopped,
        was_deadlocked=stall_monitor.deadlocked,
        was_released=stall_monitor.unblocker is not None,
        diagnosis=stall_monitor.diagnosis,
        last_snapshots=stall_monitor.last_snapshots,
        lost_hosts=tuple(ranks.engines.lost_hosts),
    )
    if evidence.needs_snapshots:
        snapshots = stall_monitor.all_snapshots([])
        of_the_cell = {rank: told for rank, told in snapshots.items() if rank in outcomes}
        evidence = replace(evidence, snapshots=of_the_cell, known_names=_names_in_notebook())
    conclusion = conclude(evidence)
    if conclusion.error is None:
        if conclusion.must_regroup:
            print(conclusion.notice)
            print("\n".join(ranks.recover().sentences()))
        return None
    if conclusion.is_postponed:
        return conclusion.with_message(_replace_dead(ranks, is_postponed=True))
    recovery = ranks.recover(regroup=conclusion.must_regroup)
    return conclusion.with_given_up(recovery.replaced).with_message(recovery.sentences())


def _names_in_notebook():
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return frozenset(() if shell is None else shell.user_ns.keys() - shell.user_ns_hidden.keys())


def _replace_dead(ranks, is_postponed):
    """
    Replace dead ranks, now or when the next cell begins. Return lines of a message about it.

    A launcher may take long to give up a host that is gone, so the learner gets the prompt first.
    """
    if not is_postponed:
        return ranks.recover().sentences()
    ranks.reported_dead, ranks.is_consistent = frozenset(ranks.dead), False
    return [postponed_sentence(sorted(ranks.reported_dead), ranks.engines.lost_hosts)]


def _with_hosts(ranks, outcomes):
    # Note the hosts before the recovery, because a new process may start on another host.
    hosts, all_silent = ranks.engines.hosts, ranks.engines.silent
    answering = {host for rank, host in hosts.items() if rank not in all_silent}
    noted = dict(outcomes)
    for rank in hosts.keys() & outcomes.keys():
        silent = "it" if hosts[rank] in answering else hosts[rank]
        silent = silent if rank in all_silent else ""
        noted[rank] = replace(outcomes[rank], host=hosts[rank], silent=silent)
    return noted
