"""
How all ranks leave their groups and join a new one, in whatever state a fault has left them.

    release   all ranks, until each answers; replace ranks that cannot be released
    leave     on each rank alone, so that a rank that cannot leave is found
    join      on all ranks together

Each of the three steps may fail, since a rank may die at any moment. Then all steps are repeated.
"""

from __future__ import annotations

import secrets
import time
from concurrent.futures import wait
from typing import TYPE_CHECKING

from ddp_lessons.errors import PrivateNameGone, StartFailed
from ddp_lessons.ranks.diagnosis.wording import rank_names
from ddp_lessons.ranks.kernel.unblocking import Resuming, Unblocker
from ddp_lessons.ranks.rank import group_membership
from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.sleep_tracker import SleepTracker
from ddp_lessons.ranks.system.thread_stats import thread_stats_of

if TYPE_CHECKING:
    from ddp_lessons.ranks.kernel.ranks import Ranks

_ATTEMPTS = 5
_VERBS = {"leave": "leave one", "join": "join one", "open_store": "open a store for one"}


class GroupBroken(Exception):
    """
    A join or leave that will never finish. The text of this error says why.
    """


def rejoin_group(ranks: Ranks) -> tuple[set[int], list[str]]:
    """
    Release all ranks, have them leave their groups, and join a new group if `ranks.joined`.

    Args:
        ranks: The Ranks.

    Returns:
        (set[int], list[str]): The replaced ranks, and the names in the ranks' namespaces that hold
        an earlier group.

    Raises:
        StartFailed: All attempts failed. `ranks.is_consistent` is False: the next cell tries again.
    """
    replaced: set[int] = set()
    for _ in range(_ATTEMPTS):
        ranks.is_consistent = False
        replaced.update(_free_all(ranks))
        try:
            stale = leave_all(ranks)
            if ranks.joined:
                stale = join_all(ranks)
        except GroupBroken as broken:
            fault = broken
            continue
        return replaced, stale
    _free_all(ranks)  # a rank that still waits for others cannot answer a view
    # The first start ends its ranks after this error; a later cell keeps them.
    next_step = (
        "Call start_ranks() for new ranks. If these still run, the next cell tries to join them"
    )
    if PrivateNameGone.__name__ in str(fault):  # the error itself stays on its rank
        next_step = "Install the versions of requirements.lock: no ranks can join under these"
    raise StartFailed(f"Ranks are in no group: {fault}. {next_step}.")


def _free_all(ranks):
    """
    Release all ranks until each answers. Return the set of replaced ranks.
    """
    replaced = set(ranks.engines.replace_dead())
    answers = _ask(ranks, range(len(ranks)))
    unblocker = None
    wait(answers.values(), timeout=clocks.IDLE_S)
    while busy := [rank for rank, answer in answers.items() if not answer.done()]:
        unblocker = unblocker or Unblocker(ranks)
        lost = unblocker.step(busy)
        if lost:
            ranks.engines.kill_stuck(lost)
        replaced_ranks = ranks.engines.replace_dead()
        replaced.update(replaced_ranks)
        answers.update(_ask(ranks, replaced_ranks))
        wait([answers[rank] for rank in busy], timeout=clocks.FREE_EVERY_S)
    replaced.update(ranks.engines.replace_dead())
    ranks.control.settle()
    return replaced


def _ask(ranks, some):
    return {rank: ranks.client.direct_view(rank).apply_async(int) for rank in some}


def join_all(ranks: Ranks) -> list[str]:
    """
    Join all ranks to a new default process group, after they have left any earlier one.

    Args:
        ranks: The Ranks.

    Returns:
        list[str]: Names in the ranks' namespaces that hold an earlier group.

    Raises:
        GroupBroken: A rank died, raised, or is stuck. `ranks.is_consistent` is False then.
    """
    meeting, placement = _new_meeting(ranks), ranks.placement
    arguments = [(meeting, len(ranks), placement.backend, device) for device in placement.devices]
    return _names(_call_agents(ranks, "join", arguments))


def _new_meeting(ranks):
    """
    Make the store in which ranks meet. Return the argument `meeting` of `group_membership.join`.
    """
    if ranks.engines.shares_files:
        return str(ranks.new_store_file())
    (snapshot,) = _call_agents(ranks, "open_store", [()])
    # torch's store has no password. So ranks get a secret prefix of its keys, over the encrypted
    # connection.
    return (*snapshot, secrets.token_hex())


def leave_all(ranks: Ranks) -> list[str]:
    """
    Have all ranks leave their groups.

    Args:
        ranks: The Ranks.

    Returns:
        list[str]: Names in the ranks' namespaces that hold an earlier group.

    Raises:
        GroupBroken: A rank died, raised, or is stuck. `ranks.is_consistent` is False then.
    """
    return _names(_call_agents(ranks, "leave", [()] * len(ranks)))


def _names(lists):
    return sorted(set().union(*lists))


def _call_agents(ranks, name, arguments):
    """
    Run a function of `group_membership` on ranks, and wait for it unless a rank gets stuck.

    Args:
        ranks: The Ranks.
        name: The function's name: "join", "leave" or "open_store".
        arguments: A tuple of arguments for each rank, from rank 0 on. Later ranks are left out.

    Returns:
        list: The function's results, in rank order.
    """
    ranks.is_consistent = False
    if ranks.dead:
        raise GroupBroken(f"{rank_names(ranks.dead)} had died before")
    futures = {}
    for rank, args in enumerate(arguments):
        view = ranks.client.direct_view(rank)
        futures[rank] = view.apply_async(getattr(group_membership, name), *args)
    watch = _Watch(ranks, name)
    while late := wait(futures.values(), timeout=clocks.GROUP_LOOK_EVERY_S).not_done:
        pending = [rank for rank, future in futures.items() if future in late]
        failed = [rank for rank, future in futures.items() if future.done() and future.exception()]
        if failed or ranks.dead or watch.stands_still(pending):
            break
    for rank, future in futures.items():
        if future.done() and future.exception() is not None:
            raise GroupBroken(f"rank {rank} could not {_VERBS[name]} ({_first_line(future)})")
    if ranks.dead:
        raise GroupBroken(f"{rank_names(ranks.dead)} died of the {name.partition('_')[0]}")
    if late:
        raise GroupBroken(f"{rank_names(pending)} did not {_VERBS[name]}")
    ranks.is_consistent = True
    return [future.result() for future in futures.values()]


def _first_line(future):
    return str(future.exception()).strip().partition("\n")[0]


class _Watch:
    """
    The watch on ranks that join or leave, which tells stuck ranks from slow ones.

    Args:
        ranks: The Ranks.
        name: The function of `group_membership` that the ranks run.
        clock: Function that returns seconds.
        stats: Function from a process id to its ThreadStats or None.
    """

    def __init__(self, ranks, name, clock=time.monotonic, stats=thread_stats_of):
        self._is_alone = name != "join"
        self._limit_s = clocks.ALONE_ASLEEP_S if self._is_alone else clocks.JOIN_ASLEEP_S
        self._clock = clock
        self._began_at = clock()
        self._rests = {
            rank: SleepTracker(pid, clock, stats) for rank, pid in ranks.supervisor.pids.items()
        }
        self._resuming = Resuming(ranks)
        self._resuming.step(self._rests)

    def stands_still(self, pending):
        """
        Return whether these ranks will never finish, so that it is no use to wait any longer.
        """
        known = [self._rests[rank] for rank in pending if rank in self._rests]
        if len(known) < len(pending) or not all(rest.is_known for rest in known):
            return self._clock() - self._began_at > clocks.GROUP_UNKNOWN_S
        for rest in known:
            rest.look()
        self._resuming.step(self._rests)
        if any(rest.halted_s > clocks.FREE_HALTED_S for rest in known):
            return True
        still = [rest.rest_s > self._limit_s and rest.nothing_stirs for rest in known]
        if self._is_alone:
            return any(still)
        polled = [rest.turns_since(rest.first) > clocks.JOIN_POLLS for rest in known]
        return all(map(max, still, polled))
