"""
Tests of the test hosts of scripts/hosts.sh: a real network connects them, and they leave no trace.
"""

import os
import shutil
import subprocess
import sys

import pytest
from throw_away_hosts import SCRIPT, environment, hosts, needs_hosts, net_of, traces

DELAY_MS = 20
RATE_BYTES_PER_S = 20_000_000 / 8
SENT_BYTES = 2_000_000
SEND = """
import socket, sys, time
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as link:
    began_s = time.monotonic()
    link.sendall(bytes(int(sys.argv[3])))
    link.shutdown(socket.SHUT_WR)
    link.recv(1)  # a byte comes back when all has come
    print(time.monotonic() - began_s)
"""
TAKE = """
import socket
with socket.create_server(("", 0)) as door:
    print(door.getsockname()[1], flush=True)
    link, _ = door.accept()
    with link:
        while link.recv(1 << 20):
            pass
        link.send(b".")
"""


@pytest.fixture
def bed(tmp_path):
    """
    Yield a function that starts hosts. After the test they are taken down, without leaving a trace.
    """
    folder, nets = tmp_path / "hosts", []

    def up(*arguments):
        done = hosts("up", *arguments, folder=folder)
        assert done.returncode == 0, done.stderr
        nets.append(net_of(folder))
        assert f"DDP_LESSONS_HOSTS={folder} DDP_LESSONS_NET={nets[0]}" in done.stdout
        return folder

    yield up
    assert hosts("down", folder=folder).returncode == 0
    assert [traces(folder, net) for net in nets] == [[]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "expected up, run, cut, mute, mend, off or down (got '')"),
        (["up"], "expected a number of hosts from 1 to 99 (got '')"),
        (["up", "many"], "expected a number of hosts from 1 to 99 (got 'many')"),
        (["up", "2", "--rate", "fast"], "such as 100mbit (got 'fast')"),
        (["up", "2", "--delay", "5"], "such as 5ms (got '5')"),
        (["up", "2", "--rate"], "expected a value after --rate"),
        (["up", "2", "--private", "tmp"], "expected a folder's full path (got 'tmp')"),
        (["up", "2", "--speed", "1"], "expected --rate, --delay or --private (got '--speed')"),
        (["run", "1", "true"], "there is no node '1'"),
        (["cut", "1"], "there is no node '1'"),
        (["mute"], "there is no node ''"),
        (["mend", "one"], "there is no node 'one'"),
        (["off", ""], "there is no node ''"),
    ],
)
def test_bad_orders_are_refused_in_a_line(arguments, said, tmp_path):
    """
    A wrong order is refused in one line that says what was expected, and no folder is made.
    """
    done = hosts(*arguments, folder=tmp_path / "hosts")
    assert done.returncode == 1
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "hosts").exists()


def test_what_is_missing_is_named(tmp_path):
    """
    A missing program is named, with the command to install it: most machines have no sshd.
    """
    empty = tmp_path / "bin"
    empty.mkdir()
    for name in ("bash", "dirname", "pwd"):
        (empty / name).symlink_to(shutil.which(name))
    script = SCRIPT.read_text().replace("PATH=$PATH:/usr/sbin:/sbin", "")
    (tmp_path / "hosts.sh").write_text(script)
    done = subprocess.run(
        [shutil.which("bash"), tmp_path / "hosts.sh", "up", "2"],
        capture_output=True, text=True, check=False, timeout=60,
        env={"PATH": str(empty), "DDP_LESSONS_HOSTS": str(tmp_path / "hosts")},
    )  # fmt: skip
    assert "no ip on this machine" in done.stderr
    assert "apt-get install iproute2 openssh-server" in done.stderr


def test_no_process_that_has_the_number_of_an_old_host_is_ended(tmp_path):
    """
    `down` does not end a process that by chance has the number in an old folder's pid file.
    """
    with subprocess.Popen(["sleep", "60"]) as other:
        (tmp_path / "hosts").mkdir()
        (tmp_path / "hosts" / "net").write_text("10.213.251")
        (tmp_path / "hosts" / "node1.pid").write_text(f"{other.pid}\n")
        hosts("down", folder=tmp_path / "hosts")
        assert other.poll() is None
        other.kill()


@needs_hosts
def test_each_host_has_name_address_loopback_and_processes_of_its_own(bed):
    """
    Each host has its own name, address, loopback, shared memory and processes, so that messages
    between hosts must use the network.
    """
    folder = bed(2)
    for number in (1, 2):
        told = hosts("run", number, "sh", "-c", "hostname; hostname -i; ls /dev/shm; echo $PPID",
                     folder=folder)  # fmt: skip
        assert told.stdout.split() == [f"node{number}", f"{net_of(folder)}.10{number}", "0"], (
            told.stderr
        )
    with subprocess.Popen(
        ["sleep", "600"], env={**os.environ, "WHERE": "here"}
    ) as outside:  # must be invisible on a host
        seen = hosts("run", 1, "sh", "-c", f"ls -d /proc/{outside.pid}", folder=folder)
        outside.kill()
    assert seen.returncode != 0
    # hosts are running already
    assert hosts("up", 2, folder=folder).stderr.startswith("hosts.sh: ")


@needs_hosts
def test_one_logs_in_from_here_and_from_host_to_host_without_a_question(bed):
    """
    SSH logs in without a question, from here as the SSH launcher needs it, and from host to host as
    MPI needs it.
    """
    folder = bed(2)
    ssh = ["ssh", "-F", folder / "ssh_config", "node1"]
    done = subprocess.run(
        [*ssh, "hostname; ssh node2 hostname"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout.split() == ["node1", "node2"], done.stderr


@needs_hosts
def test_messages_take_their_time_and_links_carry_no_more_than_they_shall(bed):
    """
    A link has the delay and the bandwidth that were set.
    """
    folder = bed(2, "--rate", "20mbit", "--delay", f"{DELAY_MS}ms")
    with _taker(folder) as (_, port):
        empty_s = _send(folder, port, 1)
    # Twice the delay: once for the bytes, once for the answer.
    assert empty_s >= 2 * DELAY_MS / 1000
    with _taker(folder) as (_, port):
        full_s = _send(folder, port, SENT_BYTES)
    assert full_s >= 0.9 * SENT_BYTES / RATE_BYTES_PER_S  # the first 64 kB may be sent at once


@needs_hosts
@pytest.mark.parametrize("links", [(), ("--delay", "1ms")], ids=["plain", "delayed"])
@pytest.mark.parametrize("fault", ["cut", "mute"])
def test_a_link_that_is_out_stops_messages_and_loses_none(bed, links, fault):
    """
    A link that is cut or mute delays messages and loses none after it is mended. A mute host
    receives the bytes, but its answers are lost.
    """
    folder = bed(2, *links)
    with _taker(folder) as (_, port):
        assert hosts(fault, 2, folder=folder).returncode == 0
        sender = _sender(folder, port, SENT_BYTES)
        with pytest.raises(subprocess.TimeoutExpired):
            sender.wait(timeout=1.5)
        assert hosts("mend", 2, folder=folder).returncode == 0
        told, _ = sender.communicate(timeout=60)
    assert sender.returncode == 0
    assert float(told) > 0


@needs_hosts
def test_a_host_that_is_switched_off_takes_its_processes_along(bed):
    """
    A host that is switched off ends all its processes at once, and the other host keeps running.
    """
    folder = bed(2)
    with _taker(folder) as (taker, _):
        assert hosts("off", 2, folder=folder).returncode == 0
        taker.wait(timeout=10)
    assert hosts("run", 2, "true", folder=folder).stderr == "hosts.sh: node2 is off\n"
    assert hosts("run", 1, "true", folder=folder).returncode == 0


@needs_hosts
def test_two_test_beds_at_once_have_networks_of_their_own(bed, tmp_path):
    """
    Two test beds at once have different networks, for two learners or two tests on one machine.
    """
    nets = {net_of(bed(1))}
    other = tmp_path / "other"
    assert hosts("up", 1, folder=other).returncode == 0
    nets.add(net_of(other))
    assert hosts("down", folder=other).returncode == 0
    assert len(nets) == 2


@needs_hosts
def test_a_folder_can_be_each_host_s_own(bed, tmp_path):
    """
    With `--private` a folder has separate contents on each host, as /tmp has on real hosts.
    """
    own = tmp_path / "own"
    own.mkdir()
    folder = bed(2, "--private", own)
    assert hosts("run", 1, "touch", own / "one", folder=folder).returncode == 0
    assert hosts("run", 2, "ls", own, folder=folder).stdout == ""
    assert list(own.iterdir()) == []


class _taker:
    """
    A process on node2 that receives all bytes and then sends an answer. Use it in a `with`, which
    yields the process and its port.
    """

    def __init__(self, folder):
        self.process = _popen(folder, 2, TAKE)

    def __enter__(self):
        return self.process, int(self.process.stdout.readline())

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


def _sender(folder, port, num_bytes):
    return _popen(folder, 1, SEND, f"{net_of(folder)}.102", port, num_bytes)


def _send(folder, port, num_bytes):
    told, _ = _sender(folder, port, num_bytes).communicate(timeout=60)
    return float(told)


def _popen(folder, number, source, *arguments):
    return subprocess.Popen(
        [SCRIPT, "run", str(number), sys.executable, "-c", source, *map(str, arguments)],
        env=environment(folder), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
