"""
What real hosts have printed in lesson 17, for a machine that can have none.

A test holds these texts to the notebook that was run and stored.
"""

from ..errors import BadInput

STORED = {
    "cable": """\
rank 0 can be reached from: the network of node1
round a flat ring a host sends 1.5 times as much as hierarchically
2 hosts see fewer samples a second than one: True
half precision is faster than plain DDP: True
hierarchical is faster than plain DDP: True""",
    "faults": """\
an all-reduce took longer, and came out: sum 4
an all-reduce failed after 6 s: Timed out""",
}


def stored_output(name: str, reason: str) -> str:
    """
    Return what a cell says where there are no hosts, and what it has printed elsewhere.

    Args:
        name: One of STORED.
        reason: Why there are none, as `why_no_hosts` says it.

    Raises:
        BadInput: Nothing of that name is stored.

    Lesson: 17_many_machines.
    """
    if name not in STORED:
        raise BadInput(
            f"Nothing stored: expected one of {', '.join(STORED)} (got {name!r}). Name one of them."
        )
    lines = [f"  stored | {line}" for line in STORED[name].splitlines()]
    return "\n".join([f"No hosts here: {reason}. Where there are, this came out:", *lines])
