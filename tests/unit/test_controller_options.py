"""
Where a controller listens: in a private folder, or on ports, its own, also where many controllers
start at the same moment.
"""

import errno
import socket

import pytest
import zmq
from ipyparallel.controller.app import IPController

from ddp_lessons.ranks.supervisor.controller_app import RanksController
from ddp_lessons.ranks.supervisor.controller_options import (
    EVERY_INTERFACE,
    NUM_PORTS,
    can_hold_sockets,
    controller_arguments,
    hold_ports,
    needs_ports,
    ports_argument,
)


@pytest.fixture
def held():
    """
    Give the sockets that hold a controller's ports.
    """
    sockets = hold_ports()
    yield sockets
    for sock in sockets:
        sock.close()


def test_hold_ports_keeps_others_away(held):
    """
    Eight notebooks that start at once got each other's ports about once in thirty starts.
    """
    ports = {sock.getsockname()[1] for sock in held}
    assert len(ports) == NUM_PORTS
    for port in ports:
        with socket.socket() as other, pytest.raises(OSError, match="in use") as caught:
            other.bind(("127.0.0.1", port))
        assert caught.value.errno == errno.EADDRINUSE
        with socket.socket() as caller, pytest.raises(ConnectionRefusedError):
            caller.connect(("127.0.0.1", port))


@pytest.mark.parametrize("address", ["127.0.0.1", "*"])
def test_hold_ports_lets_zeromq_listen(held, address):
    """
    The controller listens on the port while it is held, on loopback or for other machines.
    """
    port = held[0].getsockname()[1]
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.bind(f"tcp://{address}:{port}")
        with socket.create_connection(("127.0.0.1", port)):
            pass
        with context.socket(zmq.ROUTER) as second, pytest.raises(zmq.ZMQError, match="in use"):
            second.bind(f"tcp://127.0.0.1:{port}")


def test_controller_takes_the_ports_that_are_held(held, tmp_path):
    """
    Its command line is read as ipyparallel reads it.
    """
    controller = IPController()
    arguments = controller_arguments(tmp_path, "some-ranks")
    controller.parse_command_line([*arguments, ports_argument(held)])
    assert controller.ports == [sock.getsockname()[1] for sock in held]
    assert controller.cluster_id == "some-ranks"
    assert controller.ip == "127.0.0.1"


@pytest.mark.parametrize("listen", ["127.0.0.1", EVERY_INTERFACE])
def test_controller_encrypts(listen, tmp_path):
    """
    Loopback is shared by every user of a machine, a network by more. Who has no key may not listen.
    """
    controller = IPController()
    controller.parse_command_line(controller_arguments(tmp_path, "some-ranks", listen))
    assert controller.enable_curve
    assert len(controller.curve_secretkey) == len(controller.curve_publickey) == 40
    other = IPController()
    other.parse_command_line(controller_arguments(tmp_path, "other-ranks", listen))
    assert other.curve_secretkey != controller.curve_secretkey
    # Signed too, or a warning in the log of each notebook would say that nothing is.
    assert other.config.Session.key != controller.config.Session.key != b""


def test_controller_listens_on_loopback_unless_told(tmp_path):
    """
    Ranks on other machines need more; a learner's laptop does not.
    """
    assert "--ip=127.0.0.1" in controller_arguments(tmp_path, "some-ranks")
    for listen in (EVERY_INTERFACE, "10.0.0.9"):
        arguments = controller_arguments(tmp_path, "some-ranks", listen)
        assert f"--ip={listen}" in arguments
        # A host that vanishes says nothing, so its ranks count as dead after 8 s.
        assert "--HeartMonitor.max_heartmonitor_misses=15" in arguments


def test_controller_in_a_folder_needs_no_port_and_no_key(tmp_path):
    """
    Who can come to its sockets is its owner. It still signs, as IPython's own kernels do.
    """
    arguments = controller_arguments(tmp_path, "some-ranks", folder=tmp_path)
    assert not needs_ports(arguments)
    assert needs_ports(controller_arguments(tmp_path, "some-ranks"))
    controller = RanksController()
    controller.parse_command_line(arguments)
    assert not controller.enable_curve
    assert len(controller.config.Session.key) >= 32
    assert len(set(controller.ports)) == NUM_PORTS
    interface = f"{controller.engine_transport}://{controller.engine_ip}"
    assert interface == f"ipc://{tmp_path}/socket"
    controller.engine_info = {"interface": interface, "mux": 3, "broadcast": [7, 8]}
    # An engine joins what it is told by a colon.
    assert controller.engine_url("mux") == f"{interface}:3"
    assert controller.engine_url("broadcast", 1) == f"{interface}:8"


def test_can_hold_sockets_says_no_where_a_path_is_too_long(tmp_path):
    """
    Such a path has 107 bytes at most. Nothing is left of the trial.
    """
    assert can_hold_sockets(tmp_path)
    assert list(tmp_path.iterdir()) == []
    longest = tmp_path / ("x" * (107 - len(f"{tmp_path}/") - len(f"/socket:{NUM_PORTS}")))
    longest.mkdir()
    assert can_hold_sockets(longest)
    longer = longest.with_name(longest.name + "x")
    longer.mkdir()
    assert not can_hold_sockets(longer)
    assert not can_hold_sockets(tmp_path / "missing")
    assert list(longest.iterdir()) == list(longer.iterdir()) == []
