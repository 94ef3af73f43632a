"""
Messages between processes arrive as they were sent.
"""

import importlib
import json
from dataclasses import asdict, is_dataclass
from pathlib import Path

import pytest
from fake_snapshots import at, call, finished

from ddp_lessons.ranks.kernel.agent_client import snapshot_in, state_in
from ddp_lessons.ranks.messages import host_orders, json_messages, orders
from ddp_lessons.ranks.messages.rank_start import HostInfo
from ddp_lessons.ranks.messages.report import CellReport, add_report, report_in
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


def test_facts_of_a_host_are_read_whatever_its_version():
    """
    The facts of a host arrive from any version of the course. The start then fails with the two
    versions, and not with an unknown field.
    """
    info = HostInfo("node2", 70, "3.12", "2.13.0", "0.4", sees_file=True)
    sent_info = {**json.loads(json.dumps(asdict(info))), "num_gpus": 8}
    assert HostInfo.from_message(sent_info) == info
    del sent_info["sees_file"]
    assert HostInfo.from_message(sent_info).ddp_lessons == "0.4"


@pytest.mark.parametrize("reply", [{"status": "ok"}, {"engine_info": {"engine_id": 2}}])
def test_a_report_arrives_in_the_reply_and_in_the_error(reply):
    """
    A report arrives in a reply's content, and in an error's engine_info, which is all that
    ipyparallel's client keeps of an error.
    """
    report = CellReport(released=True, text="gone", line=3, code="wait()", enclosed=["a", None])
    add_report(report, reply)
    arrived = json.loads(json.dumps(reply))
    assert report_in(arrived) == report
    assert "engine_info" not in arrived or report_in(arrived["engine_info"]) == report


def test_a_reply_without_a_report_has_none():
    """
    A reply that no rank agent has made, such as that to a function, has no report.
    """
    assert report_in({"status": "ok"}) is None


ORDERS = [
    orders.StartController(["--ip=127.0.0.1"]),
    orders.ImportTorch(),
    orders.StartRank(2, {"RANK": "2"}, 1, "/run/engine.json", "/home/me/profile"),
    orders.SignalRanks([0, 1], 9),
    orders.CutSockets([1], [4000]),
    orders.RemoveAtEnd(["/tmp/a"]),
    orders.RunAtEnd([["scancel", "7"]]),
    orders.EndAll(),
    orders.ControllerStarted(7),
    orders.ControllerDied(-9),
    orders.TorchImported(2, True, "2.13.0"),
    orders.RankStarted(1, 70),
    orders.RankProcessDied(1, 70, -11),
    orders.OrderFailed("OSError: no memory"),
    orders.SupervisorGone(),
]


@pytest.mark.parametrize("message", ORDERS, ids=lambda message: type(message).__name__)
def test_orders_and_events_arrive_as_they_were_sent(message):
    """
    The supervisor's end and the kernel's end share these classes, and nothing else.
    """
    content = json.loads(json.dumps(json_messages.message_to_json(message)))
    assert orders.from_json(content) == message


HOST_ORDERS = [
    host_orders.StartProcess("node1/0", ["python"], {"RANK": "0"}, "/tmp/log", "/tmp/profile"),
    host_orders.SendLog("node1/0"),
    host_orders.SignalProcess("node1/0", 9),
    host_orders.KeepProcesses(),
    host_orders.AskHost(),
    host_orders.HostAnswers(),
    host_orders.ProcessStarted("node1/0", 70),
    host_orders.LogTail("node1/0", "up\n"),
    host_orders.ProcessEnded("node1/0", None, "no such file"),
]


@pytest.mark.parametrize("message", HOST_ORDERS, ids=lambda message: type(message).__name__)
def test_messages_of_a_host_agent_arrive_as_they_were_sent(message):
    """
    The kernel and a host agent share these classes, which travel as lines of JSON.
    """
    content = json.loads(json.dumps(json_messages.message_to_json(message)))
    is_order = isinstance(message, host_orders.HostOrder)
    read = host_orders.host_order_from_json if is_order else host_orders.host_answer_from_json
    assert read(content) == message


def test_every_order_and_event_is_tried_here():
    """
    A new message that is not in the lists above would be sent untried.
    """
    known = {*orders.Order.__args__, *orders.Event.__args__}
    assert {type(message) for message in ORDERS} == known
    known = {*host_orders.HostOrder.__args__, *host_orders.HostAnswer.__args__}
    assert {type(message) for message in HOST_ORDERS} == known


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ({"type": "Dance"}, KeyError),
        ({"type": "SignalRanks", "ranks": [0]}, TypeError),
        ({"type": "EndAll", "ranks": [0]}, TypeError),
    ],
)
def test_a_message_that_is_none_is_refused(content, error):
    """
    The supervisor answers with OrderFailed then, and the start fails with a reason.
    """
    with pytest.raises(error):
        orders.from_json(content)


def test_messages_are_frozen():
    """
    No class of a message can be changed, so that each end reasons about what was sent.
    """
    folder = Path(orders.__file__).parent
    modules = [
        importlib.import_module(f"ddp_lessons.ranks.messages.{path.stem}")
        for path in folder.glob("[!_]*.py")
    ]
    classes = [each for module in modules for each in vars(module).values() if is_dataclass(each)]
    assert len(classes) > len(ORDERS)
    assert [each for each in classes if not each.__dataclass_params__.frozen] == []
