"""
Where processes listen: what a firewall must let through, and who could knock.
"""

import psutil

_ANY = ("0.0.0.0", "::")


def listening(process: psutil.Process | None = None) -> list[tuple[str, int]]:
    """
    Return where a process listens.

    Args:
        process: A `psutil.Process`; None: this one.

    Returns:
        list: Pairs (who can reach it, port), sorted: "this machine" behind a loopback, "any
        network" where it listens on all interfaces, else the address of the one.

    Source: psutil documentation, `net_connections`. Lesson: 17_many_machines.
    """
    process = process or psutil.Process()
    doors = {
        (_who(one.laddr.ip), one.laddr.port)
        for one in process.net_connections(kind="tcp")
        if one.status == psutil.CONN_LISTEN
    }
    return sorted(doors)


def _who(address):
    address = address.removeprefix("::ffff:")  # IPv4, as a socket of IPv6 names it
    if address.startswith("127.") or address == "::1":
        return "this machine"
    return "any network" if address in _ANY else address
