"""
Made-up snapshots of ranks and their collectives, as rank agents report them.
"""

from dataclasses import replace

from ddp_lessons.ranks.messages.snapshot import Collective, RankSnapshot


def call(name, number, size=(4,), dtype="Float", group="0", record=None, timeout_s=1800.0):
    """
    Return one collective as the flight recorder describes it.
    """
    return Collective(
        name=name,
        number=number,
        group=group,
        sizes=[list(size)],
        dtypes=[dtype],
        timeout_s=timeout_s,
        is_p2p=False,
        record=number if record is None else record,
    )


def at(line, code, waiting_in="", calls=(), peer=None, groups=None, timeout_s=None):
    """
    Return the snapshot of a rank that is in its cell.

    Args:
        line, code: The number and the source of the line where the rank is.
        waiting_in: The communication call that the rank is in, or "".
        calls: Collectives that the rank has called in this cell (see `call`).
        peer: The other rank of a send or recv.
        groups: {group name: its members}; by default one group of ranks 0 to 3.
        timeout_s: The time limit in seconds that the call itself was given, or None.
    """
    return RankSnapshot(
        busy=True,
        line=line,
        code=code,
        call=waiting_in,
        function=waiting_in or "<module>",
        peer=peer,
        timeout_s=timeout_s,
        collectives=list(calls),
        groups={"0": [0, 1, 2, 3]} if groups is None else groups,
        helpers=[],
    )


def finished(calls=(), groups=None):
    """
    Return the snapshot of a rank that has finished its cell.
    """
    return replace(at(None, "", calls=calls, groups=groups), function="", busy=False)


def reducing(number=1, line=2, **details):
    """
    Return the snapshot of a rank in its all_reduce with that number, after only all_reduces.
    """
    calls = [call("all_reduce", each) for each in range(1, number + 1)]
    return at(line, "dist.all_reduce(t)", "all_reduce", calls, **details)


def receiving(peer):
    """
    Return the snapshot of a rank that waits for a message from `peer`.
    """
    return at(1, "dist.recv(t, peer)", "recv", peer=peer)


def sending(peer):
    """
    Return the snapshot of a rank that waits for `peer` to receive.
    """
    return at(1, "dist.send(t, peer)", "send", peer=peer)
