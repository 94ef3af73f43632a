"""
Network interfaces of this machine, and which of them leads to another machine.

A process that listens only on that interface cannot be reached over the others. Here is also how to
see that a process waits for a name server.
"""

import os
import re
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import psutil

from ddp_lessons.errors import StartFailed

GROUP_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""
The environment variables that name the interface on which torch's backends listen.
"""

_ANY_PORT = 9
_NAME_SERVER_PORT = 53


def address_towards(host: str) -> str:
    """
    Return the IPv4 address of this machine with which it would talk to a host. Send nothing.

    Raises:
        OSError: The host's name is unknown, or no route leads to the host.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((host, _ANY_PORT))  # with UDP, the system only looks up the route
        return sock.getsockname()[0]


def addresses_of(name: str) -> list[str]:
    """
    Return the list of IPv4 addresses of an interface of this machine; empty if it does not exist.
    """
    found = psutil.net_if_addrs().get(name, ())
    return [address.address for address in found if address.family == socket.AF_INET]


def interface_of(address: str) -> str:
    """
    Return the name of the interface that has an IPv4 address.

    Raises:
        StartFailed: No interface of this machine has the address.
    """
    for name in psutil.net_if_addrs():
        if address in addresses_of(name):
            return name
    raise StartFailed(
        f"No interface of this machine has the address: expected one of "
        f"{', '.join(psutil.net_if_addrs())} to have it (got {address}). "
        'Run "ddp-lessons doctor" to see what this machine lacks.'
    )


def chosen_address(name: str) -> str:
    """
    Return the address that a user has chosen by an interface's name or by the address itself.

    Raises:
        StartFailed: This machine has no such interface or address.
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


def names_for_ssh(command: Sequence[str], hosts: Iterable[str]) -> dict[str, str]:
    """
    Return for each host the name or address to which ssh connects.

    ssh's configuration may replace the name that the user has given.

    Args:
        command: The ssh command with its options, a list of words.
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


def common_address(hosts: Mapping[str, str]) -> str:
    """
    Return the one IPv4 address of this machine with which it talks to all of the given hosts.

    Args:
        hosts: {the user's name of a host: its name or address}. Unknown hosts are ignored as long
            as one host is known, because the later login reports what is wrong.

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
    if len(found) > 1:  # ignore loopback: this machine is a host, too, and any address reaches it
        found -= {address for address in found if address.startswith("127.")}
    if len(found) == 1:
        return found.pop()
    ways_told = ", ".join(f"{address} for {told}" for told, address in ways.items())
    raise StartFailed(
        "Ranks could not be started: expected one address of this machine that leads to all hosts "
        f"(got {ways_told or 'none for ' + ', '.join(hosts)}). Set DDP_LESSONS_INTERFACE to the "
        "interface that they reach, such as eth0."
    )


def group_address() -> str:
    """
    Return the IPv4 address on which Gloo listens in this process.

    Raises:
        StartFailed: GLOO_SOCKET_IFNAME names no interface of this machine.
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


def bind_groups_towards(host: str) -> None:
    """
    Have the groups of this process listen only on the interface that leads to a host.

    A variable that the login shell or the parent process has set stays as it is. If the host is
    this one, nothing is set: other ranks may be on other hosts, which loopback does not reach.
    """
    unset = [name for name in GROUP_VARIABLES if not os.environ.get(name)]
    if unset and not (address := address_towards(host)).startswith("127."):
        os.environ.update(dict.fromkeys(unset, interface_of(address)))


def group_variables() -> dict[str, str | None]:
    """
    Return {name: value in this process, or None} for the variables that name an interface.
    """
    return {name: os.environ.get(name) for name in GROUP_VARIABLES}


@contextmanager
def using_group_variables(told: Mapping[str, str | None]) -> Iterator[None]:
    """
    Set the variables that name an interface to other values within a `with` block.

    Args:
        told: {name: value, or None to unset it}, as `group_variables` returns it.
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


def asks_name_server(pid: int) -> bool:
    """
    Return whether a process waits for a name server: it has a socket that is connected to one.

    The system's lookup opens such a socket for each question, and closes it with the answer. The
    answer is False for a process that has ended, and for a process of another user.

    Args:
        pid: Process id on this machine.

    Source: getaddrinfo(3), resolv.conf(5).
    """
    try:
        sockets = psutil.Process(pid).net_connections("inet")
    except psutil.Error:
        return False
    return any(sock.raddr and sock.raddr.port == _NAME_SERVER_PORT for sock in sockets)
