"""
Messages between processes arrive as they were sent.
"""

import json
from dataclasses import asdict

import pytest
from fake_snapshots import at, call, finished

from ddp_lessons.ranks.kernel.agent_client import snapshot_in, state_in
from ddp_lessons.ranks.messages.snapshot import AgentState, FormingGroup, RankSnapshot


def sent(answer):
    """
    Return a reply as it arrives, after JSON, which has neither tuples nor our classes.
    """
    return json.loads(json.dumps({"content": {"answer": asdict(answer)}}))


@pytest.mark.parametrize(
    "snapshot",
    [
        RankSnapshot(),
        finished([call("all_reduce", 1), call("broadcast", 2, size=(2, 3))]),
        at(3, "dist.recv(t, 1)", "recv", peer=1, timeout_s=5.0),
        RankSnapshot(rank=2, forming=FormingGroup("", [0, 1], "7"), groups={"0": [0, 1]}),
        RankSnapshot(helpers=["thread"], replied_to="a1"),
    ],
)
def test_a_snapshot_arrives_as_it_was_taken(snapshot):
    """
    A snapshot equals the one that was taken, because the stall monitor compares snapshots, and a
    difference would look like progress.
    """
    assert snapshot_in(sent(snapshot)) == snapshot


def test_a_state_arrives_as_it_was():
    """
    An agent's state arrives unchanged, because the kernel judges a release by it.
    """
    state = AgentState(idle=True, num_interrupts=3, replied_to=None)
    assert state_in(sent(state)) == state


def test_a_snapshot_with_an_entry_that_nobody_knows_is_refused():
    """
    A snapshot with an unknown field is refused, so that a kernel and ranks of different versions do
    not misread each other silently.
    """
    reply = sent(RankSnapshot())
    reply["content"]["answer"]["mood"] = "good"
    with pytest.raises(TypeError, match="mood"):
        snapshot_in(reply)
