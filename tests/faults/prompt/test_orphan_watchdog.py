"""
A test of the orphan watchdog: a rank that its controller has given up ends with its `KernelNanny`.
"""

import subprocess
import sys

import pytest
import zmq
from processes import is_running
from waiting import wait_until

from ddp_lessons.ranks.messages.rank_start import ENGINE_GIVEN_UP

WITHIN_S = 20.0
RANK = """
import subprocess, sys, time, zmq
from types import SimpleNamespace
from ddp_lessons.ranks.rank.orphan_watchdog import start_orphan_watchdog

nanny = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
engine = SimpleNamespace(context=zmq.Context(), curve_serverkey=None, curve_secretkey=None,
                         curve_publickey=None, nanny_pipe=nanny)
start_orphan_watchdog(engine, *sys.argv[1:3], b"rank 3", limit_s=60)
print(nanny.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def controller():
    """
    Yield the two heartbeat sockets of a controller, for pings and for answers, and their addresses.
    """
    context = zmq.Context()
    ping, pong = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
    urls = [f"tcp://127.0.0.1:{one.bind_to_random_port('tcp://127.0.0.1')}" for one in (ping, pong)]
    yield ping, pong, urls
    context.destroy(linger=0)


def answered(ping, pong, what):
    """
    Send a heartbeat to all ranks, and return the identity of the rank that echoes it.
    """
    ping.send(what)
    assert pong.poll(WITHIN_S * 1000)
    who, told = pong.recv_multipart()
    assert told == what
    return who


def test_a_rank_that_was_given_up_ends_with_its_nanny(controller):
    """
    A rank ends when the controller gives it up, but not when another rank is given up. Its `nanny`
    ends as well, because it would later unregister the replacement that has the rank's number.
    """
    ping, pong, urls = controller
    with subprocess.Popen(
        [sys.executable, "-c", RANK, *urls], stdout=subprocess.PIPE, text=True
    ) as rank:
        nanny = int(rank.stdout.readline())
        assert ping.poll(WITHIN_S * 1000)  # the rank has subscribed
        assert answered(ping, pong, b"1.0") == b"rank 3"
        assert answered(ping, pong, ENGINE_GIVEN_UP + b"rank 2") == b"rank 3"
        assert answered(ping, pong, b"2.0") == b"rank 3"
        assert rank.poll() is None

        def has_ended():  # repeat: a first message may be lost
            ping.send(ENGINE_GIVEN_UP + b"rank 3")
            return rank.poll() is not None

        wait_until(has_ended, WITHIN_S, "the rank to end")
        assert rank.returncode == 1
    wait_until(lambda: not is_running(nanny), WITHIN_S, "the nanny to end")
