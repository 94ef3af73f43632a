"""
The controller's sockets: in a private folder or on ports of its own, also if many controllers start
at once.
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
    Give the sockets that hold a controller's ports, and close them after the test.
    """
    sockets = hold_ports()
    yield sockets
    for sock in sockets:
        sock.close()


def test_hold_ports_keeps_others_away(held):
    """
    Ports that are held cannot be taken by others. Without that, eight notebooks that started at
    once took each other's ports in about one of thirty starts.
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
    The controller can listen on a port that is held, on loopback or for other machines.
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
    The controller's command line, as ipyparallel parses it, gives it the ports that are held.
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
    A controller on ports encrypts, because every user of the machine can reach loopback, and more
    users a network. A process without the key cannot connect.
    """
    controller = IPController()
    controller.parse_command_line(controller_arguments(tmp_path, "some-ranks", listen))
    assert controller.enable_curve
    assert len(controller.curve_secretkey) == len(controller.curve_publickey) == 40
    other = IPController()
    other.parse_command_line(controller_arguments(tmp_path, "other-ranks", listen))
    assert other.curve_secretkey != controller.curve_secretkey
    # Messages are also signed. Otherwise each notebook's log would warn that they are not.
    assert other.config.Session.key != controller.config.Session.key != b""


def test_controller_listens_on_loopback_unless_told(tmp_path):
    """
    The controller listens on loopback by default, and on other interfaces only for ranks on other
    machines.
    """
    assert "--ip=127.0.0.1" in controller_arguments(tmp_path, "some-ranks")
    for listen in (EVERY_INTERFACE, "10.0.0.9"):
        arguments = controller_arguments(tmp_path, "some-ranks", listen)
        assert f"--ip={listen}" in arguments
        # A host that vanishes sends nothing, so its ranks count as dead after 8 s.
        assert "--HeartMonitor.max_heartmonitor_misses=15" in arguments


def test_controller_in_a_folder_needs_no_port_and_no_key(tmp_path):
    """
    A controller in a folder needs no ports and no encryption, because only the folder's owner
    reaches its sockets. It still signs messages, as IPython's own kernels do.
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
    # An engine joins the interface and the number with a colon.
    assert controller.engine_url("mux") == f"{interface}:3"
    assert controller.engine_url("broadcast", 1) == f"{interface}:8"


def test_can_hold_sockets_says_no_where_a_path_is_too_long(tmp_path):
    """
    A folder whose path is too long for sockets (107 bytes) is recognised, and the trial leaves no
    file.
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
