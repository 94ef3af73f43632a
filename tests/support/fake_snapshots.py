"""
What ranks say of themselves, made up: places and collectives as `RankAgent.place` returns them.
"""


def call(name, number, size=(4,), dtype="Float", group="0", record=None, timeout_s=1800.0):
    """
    Return one collective as the flight recorder tells it.
    """
    return {
        "name": name,
        "number": number,
        "group": group,
        "sizes": [list(size)],
        "dtypes": [dtype],
        "timeout_s": timeout_s,
        "is_p2p": False,
        "record": number if record is None else record,
    }


def at(line, code, waiting_in="", calls=(), peer=None, groups=None, timeout_s=None):
    """
    Return the place of a rank that is in its cell.

    Args:
        line, code: Where in the cell.
        waiting_in: The communication call that it is in, or "".
        calls: Collectives that it has called in this cell.
        peer: Whom a send or recv is for.
        groups: Members of each group; default one group of ranks 0 to 3.
        timeout_s: Time limit of its own that the call was given.
    """
    return {
        "line": line,
        "code": code,
        "call": waiting_in,
        "function": waiting_in or "<module>",
        "peer": peer,
        "tag": None,
        "group": None,
        "root": None,
        "forming": None,
        "operation": "",
        "helpers": [],
        "timeout_s": timeout_s,
        "busy": True,
        "collectives": list(calls),
        "groups": {"0": [0, 1, 2, 3]} if groups is None else groups,
    }


def finished(calls=(), groups=None):
    """
    Return the place of a rank that has finished its cell.
    """
    return {**at(None, "", calls=calls, groups=groups), "function": "", "busy": False}


def reducing(number=1, line=2, **details):
    """
    Return the place of a rank in its collective of that number, an all_reduce as all before it.
    """
    calls = [call("all_reduce", each) for each in range(1, number + 1)]
    return at(line, "dist.all_reduce(t)", "all_reduce", calls, **details)


def receiving(peer):
    """
    Return the place of a rank that waits for a message.
    """
    return at(1, "dist.recv(t, peer)", "recv", peer=peer)


def sending(peer):
    """
    Return the place of a rank that waits for a receiver.
    """
    return at(1, "dist.send(t, peer)", "send", peer=peer)
