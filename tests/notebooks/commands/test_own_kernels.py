"""
Tests that kernels of `build` and `verify` use sockets in a private folder, and listen on no port.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
from toy_lesson import TEXT, make_course
from waiting import HANGS_AFTER_S

from ddp_lessons.course.building.build import build
from ddp_lessons.course.building.kernels import start_kernel
from ddp_lessons.course.building.verify import verify
from ddp_lessons.course.notebooks.canonical import read_notebook

TELLS = """\
import ipykernel, json
with open(ipykernel.get_connection_file()) as f:
    print(json.load(f)["transport"])
"""


def ports_of(manager):
    return [
        connection.laddr.port
        for connection in psutil.Process(manager.provisioner.pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]


def test_a_kernel_listens_in_a_private_folder():
    """
    A kernel listens in a private folder, which is emptied at its end. A TCP port could be taken by
    another program between its choice and the kernel's bind.
    """
    manager, client = start_kernel()
    folder = os.path.dirname(manager.connection_file)
    assert client.execute_interactive("1 + 1", timeout=HANGS_AFTER_S)["content"]["status"] == "ok"
    assert len(ports_of(manager)) <= 1  # the debugger's, chosen and bound in one step
    assert os.stat(folder).st_mode & 0o777 == 0o700
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    assert os.listdir(folder) == []


def test_the_folder_goes_with_the_manager():
    """
    The folder is removed with its kernel manager, so that many notebooks leave nothing behind.
    """
    source = """
from ddp_lessons.course.building.kernels import KernelOnSockets
print(KernelOnSockets().connection_file)
"""
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    folder = Path(done.stdout).parent
    assert folder.name.startswith("ddp-lessons-kernel-")
    assert not folder.exists()


def test_a_kernel_has_ports_where_a_folder_cannot_hold_sockets(tmp_path, monkeypatch):
    """
    A kernel uses ports if the path of the temporary folder is too long for sockets.
    """
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    manager, client = start_kernel()
    assert client.execute_interactive("1 + 1", timeout=HANGS_AFTER_S)["content"]["status"] == "ok"
    assert len(ports_of(manager)) >= 5
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def test_notebooks_are_built_and_compared_without_ports(tmp_path):
    """
    `build` and `verify` run their kernels without ports, though nbval has no setting for it.
    """
    place = make_course(tmp_path, TEXT.replace("print(41)\n", TELLS + "print(41)\n"))
    build(place)
    printed = [
        output.text
        for cell in read_notebook(place.notebook)["cells"]
        for output in cell.get("outputs", [])
        if output.output_type == "stream"
    ]
    assert "ipc\n41\n" in printed
    verify(place)
