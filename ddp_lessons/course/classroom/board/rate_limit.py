"""
The limit on wrong class codes: an address that sends too many in a minute has to wait.

Each address is counted separately, so that a guesser elsewhere does not lock out the learners.
"""

import ipaddress

MOST_WRONG_CODES = 60
"""
Largest number of wrong codes from one address in a minute.

The learners of a room often share one address: thirty who mistype the code twice in the same minute
can still join. There are 64 million codes, so a day of guessing finds the code with a chance of
1 in 740.
"""
_MINUTE_S = 60.0
_NETWORK_BITS = 64


class WrongCodes:
    """
    The wrong codes of the last minute, counted by address.

    Args:
        clock: Function that returns seconds.
    """

    def __init__(self, clock):
        self._clock = clock
        self._times: dict[str, list[float]] = {}

    def are_too_many(self, address):
        """
        Tell whether an address has sent too many wrong codes, and has to wait.
        """
        self._forget_the_old()
        return len(self._times.get(_whose(address), ())) >= MOST_WRONG_CODES

    def note(self, address):
        """
        Count a wrong code from an address.
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
    Return the key under which an address is counted.

    A machine with IPv6 may use all 2 to the 64 addresses of its network, which count as one.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address  # a Unix socket, or no address
    if found.version == 4:
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    network = ipaddress.ip_network((int(found), _NETWORK_BITS), strict=False)
    return str(network)
