"""
The ways between ranks of several hosts. One may be played slow: a sender sleeps for as long as a
link would need, then the message goes, for real.

Legend: w ranks on h hosts of g. All ranks of a host share the one link that leaves it. A ring
through all ranks has one message a step on it; the g rings of twins have g at once, each at a g-th
part of the bandwidth.
"""

import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from ..collectives import Peers
from ..costs import Link
from .hosts import Hosts, host_of

AT_ONCE = Link(0.0, float("inf"))
"""
A link on which nothing takes any time.
"""


class HostPeers(Peers):
    """
    The ranks of a group, some of which are on other hosts: what crosses takes its time.

    Args:
        layout: For each host its ranks.
        link: A `costs.Link`: what leaves a host.
        local: A `costs.Link`: what stays on it.
        group: The process group, or None for the default group.
        sharing: How many ranks of a host send over its link at the same time.

    Lesson: 17_many_machines; `speed.SlowPeers` has one link for all.
    """

    def __init__(
        self,
        layout: Sequence[Sequence[int]],
        link: Link,
        local: Link,
        group: dist.ProcessGroup | None = None,
        sharing: int = 1,
    ) -> None:
        super().__init__(group)
        members = dist.get_process_group_ranks(self.group)
        self._hosts = [host_of(layout, rank) for rank in members]
        self._link, self._local, self._sharing = link, local, sharing

    def exchange(
        self, outgoing: torch.Tensor, to: int, incoming: torch.Tensor, source: int
    ) -> None:
        """
        Send and receive at once, after the time that the way takes for what is sent.
        """
        if self._hosts[to] == self._hosts[self.rank]:
            seconds = self._local.message_s(outgoing.nbytes)
        else:
            seconds = self._link.message_s(self._sharing * outgoing.nbytes)
        if seconds:
            time.sleep(seconds)
        super().exchange(outgoing, to, incoming, source)


class Road:
    """
    Hold the peers of one rank: all ranks, those of its host, and its twins.

    Args:
        hosts: Hosts, as `split_hosts` returns them.
        link: A `costs.Link` between hosts, played. None: as fast as this machine is.
        local: A `costs.Link` within a host, played.

    Attributes:
        everyone: Peers in the default group.
        local: Peers on this host.
        twins: Peers at this place of the other hosts, or None if hosts differ in their ranks.

    Lesson: 17_many_machines.
    """

    def __init__(self, hosts: Hosts, link: Link | None = None, local: Link | None = None) -> None:
        self.hosts = hosts
        links = (hosts.layout, link or AT_ONCE, local or AT_ONCE)
        self.everyone = HostPeers(*links)
        self.local = HostPeers(*links, hosts.local)
        self.twins = None
        if hosts.twins is not None:
            self.twins = HostPeers(*links, hosts.twins, sharing=self.local.world_size)
