"""
Wrong class codes: so many may come from one address in a minute, then it has to wait.

Each address is counted for itself: who guesses from elsewhere keeps nobody out of the room.
"""

import ipaddress

MOST_WRONG_CODES = 60
"""
So many wrong codes are answered a minute, from one address.

A room often has one address for all: thirty who mistype the code twice in the same minute still get
in. Of 64 million codes, a day of guessing finds the right one with a chance of 1 in 740.
"""
_MINUTE_S = 60.0
_NETWORK_BITS = 64


class WrongCodes:
    """
    Count the wrong codes of the last minute, by address.

    Args:
        clock: Function that returns seconds.
    """

    def __init__(self, clock):
        self._clock = clock
        self._times: dict[str, list[float]] = {}

    def are_too_many(self, address):
        """
        Tell whether an address has to wait.
        """
        self._forget_the_old()
        return len(self._times.get(_whose(address), ())) >= MOST_WRONG_CODES

    def note(self, address):
        """
        Count a wrong code.
        """
        self._times.setdefault(_whose(address), []).append(self._clock())

    def _forget_the_old(self):
        oldest_s = self._clock() - _MINUTE_S
        recent = {
            whose: [at_s for at_s in times if at_s > oldest_s]
            for whose, times in self._times.items()
        }
        self._times = {whose: times for whose, times in recent.items() if times}


def _whose(address):
    """
    Return what an address is counted under.

    A machine with IPv6 has 2 to the 64 addresses at its disposal: they count as one.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address  # a socket of Unix, or none
    if found.version == 4:
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    network = ipaddress.ip_network((int(found), _NETWORK_BITS), strict=False)
    return str(network)
