"""
Another user of the same machine, played by a process that root starts: what they see and can do.

    python other_user.py UID        read one order a line as JSON, write one answer a line

The process starts as root, so that it can read this Python wherever it is installed. It imports
what it needs and then becomes that user for good.
"""

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import zmq

NOBODY = 65534
"""
The id of a user who owns nothing.
"""
_HANDSHAKE_S = 3.0
_NUM_GARBAGE = 10


class OtherUser:
    """
    A process of another user that takes orders: each method of `Acts` is one. It is a context
    manager, and only root can start it.
    """

    def __init__(self, uid=NOBODY):
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(uid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self._process.stdin.close()
        self._process.wait(timeout=20)
        self._process.stdout.close()

    def __getattr__(self, name):
        def order(*arguments):
            self._process.stdin.write(json.dumps([name, arguments]) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

        return order


def reachable(paths):
    """
    Return the socket files that this process can connect to.
    """
    found = []
    for path in paths:
        with contextlib.suppress(PermissionError), socket.socket(socket.AF_UNIX) as caller:
            caller.connect(path)
            found.append(path)
    return found


class Acts:
    """
    The actions of the other user. Each method is an order.
    """

    def __init__(self):
        self._context = zmq.Context()
        self._ears = {}

    def ports(self, uid):
        """
        Return the TCP ports on which a user listens. Linux shows them to every user.
        """
        found = set()
        for table in ("tcp", "tcp6"):
            with contextlib.suppress(FileNotFoundError), open(f"/proc/net/{table}") as lines:
                for words in map(str.split, list(lines)[1:]):
                    if words[3] == "0A" and int(words[7]) == uid:
                        found.add(int(words[1].rpartition(":")[2], 16))
        return sorted(found)

    def listen(self, ports):
        """
        Subscribe to all messages on some ports.

        Returns:
            list[int]: The ports that accept a stranger.
        """
        for ear in self._ears.values():
            ear.close()
        self._ears = {}
        poller, monitors, open_ports = zmq.Poller(), {}, set()
        for port in ports:
            ear = self._ears[port] = self._context.socket(zmq.SUB)
            monitor = ear.get_monitor_socket(
                zmq.EVENT_HANDSHAKE_SUCCEEDED
                | zmq.EVENT_HANDSHAKE_FAILED_AUTH
                | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
                | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            )
            monitors[monitor] = port
            poller.register(monitor, zmq.POLLIN)
            ear.subscribe(b"")
            ear.connect(f"tcp://127.0.0.1:{port}")
        unknown, give_up_at = set(ports), time.monotonic() + _HANDSHAKE_S
        while unknown and time.monotonic() < give_up_at:  # a port without ZeroMQ never answers
            for monitor, _ in poller.poll(100):
                event = zmq.utils.monitor.recv_monitor_message(monitor)["event"]
                unknown.discard(monitors[monitor])
                if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    open_ports.add(monitors[monitor])
        for monitor in monitors:
            self._ears[monitors[monitor]].disable_monitor()
            monitor.close()
        return sorted(open_ports)

    def heard(self):
        """
        Return all messages received since the last call, as text.
        """
        words = []
        for ear in self._ears.values():
            with contextlib.suppress(zmq.Again):
                while True:
                    words += ear.recv_multipart(zmq.NOBLOCK)
        return b" ".join(words).decode(errors="replace")

    def garbage(self, ports):
        """
        Send unexpected data to some ports, as ZeroMQ messages and as bare bytes.
        """
        speakers = []
        for port in ports:
            for kind in (zmq.PUB, zmq.DEALER):
                for _ in range(_NUM_GARBAGE):
                    speaker = self._context.socket(kind)
                    speaker.linger = 0
                    speaker.connect(f"tcp://127.0.0.1:{port}")
                    speakers.append(speaker)
            for _ in range(_NUM_GARBAGE):
                with contextlib.suppress(OSError), socket.socket() as caller:
                    caller.settimeout(1)
                    caller.connect((b"127.0.0.1", port))
                    caller.sendall(os.urandom(64))
        give_up_at = time.monotonic() + _HANDSHAKE_S
        while time.monotonic() < give_up_at:  # a publisher drops messages without a subscriber
            for speaker in speakers:
                with contextlib.suppress(zmq.Again):
                    speaker.send_multipart([b"", b"garbage", b"\xff\x00"], zmq.NOBLOCK)
            time.sleep(0.1)
        for speaker in speakers:
            speaker.close()
        return len(speakers)

    def readable(self, paths):
        """
        Return the files and folders that this user can read.
        """
        found = []
        for path in map(Path, paths):
            with contextlib.suppress(PermissionError):
                list(path.iterdir()) if path.is_dir() else path.open("rb").close()
                found.append(str(path))
        return found

    def reachable(self, paths):
        """
        Return the socket files that this user can connect to.
        """
        return reachable(paths)

    def processes(self, pids):
        """
        Return what this user can learn of some processes: {process id: {what: text}}.
        """
        told = {pid: {} for pid in pids}
        for pid, found in told.items():
            for name in ("cmdline", "environ", "maps", "mem", "syscall"):
                # Opening memory is enough to show that it is accessible; the other files are read.
                how = (lambda file: b"") if name == "mem" else (lambda file: file.read())
                with (
                    contextlib.suppress(PermissionError),
                    open(f"/proc/{pid}/{name}", "rb") as file,
                ):
                    found[name] = how(file).decode(errors="replace")
            with contextlib.suppress(PermissionError):
                found["fd"] = " ".join(os.listdir(f"/proc/{pid}/fd"))
            with contextlib.suppress(PermissionError):
                os.kill(pid, 0)
                found["signal"] = "could be sent"
        return told

    def make_folders(self, paths):
        """
        Try to make folders, and return those that were made.
        """
        made = []
        for path in paths:
            with contextlib.suppress(PermissionError, FileExistsError):
                os.mkdir(path, 0o777)
                made.append(path)
        return made


def main(uid):
    """
    Become a user, and carry out the orders on standard input until it ends.
    """
    import zmq.utils.monitor  # noqa: F401 - later it might not be readable

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    acts = Acts()
    for line in sys.stdin:
        name, arguments = json.loads(line)
        print(json.dumps(getattr(acts, name)(*arguments)), flush=True)
    acts._context.destroy(linger=0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
