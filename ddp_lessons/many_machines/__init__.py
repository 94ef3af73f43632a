"""
Ranks on several hosts: what crosses the slow link between them, and how less does.

Read the files in this order:

- `hosts` says which rank is on which host, and makes the groups that follow from it.
- `crossing` counts the bytes that cross from host to host, by a trace.
- `roads` are the ways between ranks; one may be played slow, with real messages.
- `averages` has six ways to average gradients: the flat ring of DDP, and five remedies.
- `leaders` is hierarchical for hosts with unequally many ranks, by torch's collectives.
- `foretelling` says how long a batch takes by each of them, and `measuring` takes the time.
- `example` trains by each of them, to see what quality costs.
- `doors` lists where processes listen.
- `bed` gives real hosts on this machine, and `on_hosts` is what runs on them.
- `stored` is what that has printed, for those who cannot run it.

Lesson: 17_many_machines.
"""

from .averages import WAYS, hierarchical, hierarchical_hook, make_way
from .bed import TestBed, why_no_hosts
from .crossing import crossing_bytes
from .doors import listening
from .foretelling import EVERY, SHARE, Plan, foretold_points, foretold_s
from .hosts import Hosts, even_layout, host_of, split_hosts
from .leaders import leaders_all_reduce
from .measuring import measured_s
from .roads import Road
from .stored import stored_output

__all__ = [
    "EVERY",
    "SHARE",
    "WAYS",
    "Hosts",
    "Plan",
    "Road",
    "TestBed",
    "crossing_bytes",
    "even_layout",
    "foretold_points",
    "foretold_s",
    "hierarchical",
    "hierarchical_hook",
    "host_of",
    "leaders_all_reduce",
    "listening",
    "make_way",
    "measured_s",
    "split_hosts",
    "stored_output",
    "why_no_hosts",
]
