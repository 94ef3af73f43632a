"""
Which of this machine's interfaces leads to another machine. Who listens on that one alone cannot be
reached over the others.
"""

import os
import re
import socket
import subprocess
from contextlib import contextmanager

import psutil

from ddp_lessons.errors import StartFailed

GROUP_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""
What tells torch's backends the interface on which they listen.
"""

_ANY_PORT = 9


def address_towards(host):
    """
    Return the IPv4 address of this machine with which it would talk to a host. Sends nothing.

    Raises:
        OSError: Nobody knows the host, or nothing leads there.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((host, _ANY_PORT))  # of UDP: the system looks up the way, and that is all
        return sock.getsockname()[0]


def addresses_of(name):
    """
    Return the IPv4 addresses that an interface of this machine has; empty if there is no such.
    """
    found = psutil.net_if_addrs().get(name, ())
    return [address.address for address in found if address.family == socket.AF_INET]


def interface_of(address):
    """
    Return the name of the interface that has an IPv4 address.

    Raises:
        StartFailed: None has.
    """
    for name in psutil.net_if_addrs():
        if address in addresses_of(name):
            return name
    raise StartFailed(
        f"No interface of this machine has the address: expected one of "
        f"{', '.join(psutil.net_if_addrs())} to have it (got {address}). "
        'Run "ddp-lessons doctor" to see what this machine lacks.'
    )


def chosen_address(name):
    """
    Return the address that a person means who names an interface, or an address of this machine.

    Raises:
        StartFailed: This machine has no such.
    """
    interfaces = psutil.net_if_addrs()
    for interface in interfaces:
        own = addresses_of(interface)
        if own and name in (interface, *own):
            return own[0] if name == interface else name
    raise StartFailed(
        "Ranks could not be started: expected an interface of this machine, or its IPv4 address, "
        f"in DDP_LESSONS_INTERFACE (got {name!r}). It has {', '.join(interfaces)}."
    )


def names_for_ssh(command, hosts):
    """
    Return for each host the name or address that ssh calls: its configuration may know another.

    Args:
        command: ssh, with its options.
        hosts: Hosts as ipyparallel takes them: "node1", "ada@node1" or "node1:2222".

    Raises:
        StartFailed: ssh does not run, or cannot read its configuration.
    """
    return {host: _name_for_ssh([*command, "-G", host.partition(":")[0]], host) for host in hosts}


def _name_for_ssh(command, host):
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        said = error.strerror
    else:
        found = re.search(r"^hostname (\S+)$", done.stdout, re.MULTILINE)
        if found:
            return found[1]
        said = done.stderr.strip()
    raise StartFailed(
        f"Ranks could not be started: expected ssh to know {host} of "
        f"c.SSHEngineSetLauncher.engines (got {said!r} from {' '.join(command)}). "
        f'Try "ssh {host} true" in a terminal.'
    )


def common_address(hosts):
    """
    Return the one address of this machine with which it talks to all of some hosts.

    Args:
        hosts: {what a person calls a host: its name or address}. One that nobody knows is left
            out, as long as another is known: who logs in there will say what is wrong.

    Raises:
        StartFailed: There is no such address, or there are several.
    """
    ways = {}
    for told, host in hosts.items():
        try:
            ways[told] = address_towards(host)
        except OSError:
            continue
    found = set(ways.values())
    if len(found) > 1:  # this machine may be a host as well, and is reached by any of its addresses
        found -= {address for address in found if address.startswith("127.")}
    if len(found) == 1:
        return found.pop()
    ways_told = ", ".join(f"{address} for {told}" for told, address in ways.items())
    raise StartFailed(
        "Ranks could not be started: expected one address of this machine that leads to all hosts "
        f"(got {ways_told or 'none for ' + ', '.join(hosts)}). Set DDP_LESSONS_INTERFACE to the "
        "interface that they reach, such as eth0."
    )


def group_address():
    """
    Return the address on which Gloo listens in this process.

    Raises:
        StartFailed: The interface that it is told is none of this machine.
    """
    told = os.environ.get(GROUP_VARIABLES[0])
    if not told:
        return socket.gethostbyname(socket.gethostname())
    names = told.split(",")
    found = [address for name in names for address in addresses_of(name)]
    if not found:
        raise StartFailed(
            f"No interface for the group: expected one of {', '.join(psutil.net_if_addrs())} in "
            f"{GROUP_VARIABLES[0]} (got {told!r}). Correct it in the login shell."
        )
    return found[0]


def bind_groups_towards(host):
    """
    Have the groups of this process listen only on the interface that leads to a host.

    What the login shell, or who has started this process, says of an interface is kept. Where the
    host is this one, nothing is said: other ranks may be on others, which loopback does not reach.
    """
    unset = [name for name in GROUP_VARIABLES if not os.environ.get(name)]
    if unset and not (address := address_towards(host)).startswith("127."):
        os.environ.update(dict.fromkeys(unset, interface_of(address)))


def group_variables():
    """
    Return {name: what is set in this process, or None} of the variables that name an interface.
    """
    return {name: os.environ.get(name) for name in GROUP_VARIABLES}


@contextmanager
def using_group_variables(told):
    """
    Have the groups that are made meanwhile use other variables than those set in this process.

    Args:
        told: {name: value, or None}, see `group_variables`.
    """
    own = group_variables()
    _set_variables(told)
    try:
        yield
    finally:
        _set_variables(own)


def _set_variables(values):
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
