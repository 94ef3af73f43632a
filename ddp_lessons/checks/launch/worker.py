"""
A rank of a small job that fails in one of several ways. It needs no torch, so it starts at once.

    python -S worker.py WAY CULPRIT TEXT      RANK and WORLD_SIZE as torchrun sets them

Ranks add up a number at each step, over sockets in the current folder: rank 0 hears all, and
answers all. Who loses its peer raises ConnectionError, as ranks of Gloo raise RuntimeError.
"""

import os
import resource
import socket
import sys
import time
import traceback

NUM_STEPS = 400
PAUSE_S = 0.01
FAILS_AT = 4
PATIENCE_S = 120.0  # for jobs of a second: a crowd may keep them from their cores
_STUMBLES = ("raised", "killed")  # of these the culprit itself has survived an error before
_UNNOTICED = ("raised", "exited", "killed")  # of these one victim never learns that a peer is gone


def main(way, culprit, text):
    """
    Work until something happens.

    Args:
        way: "raised", "late", "exited", "killed", "left" or "stopped".
        culprit: The rank to which it happens.
        text: What it says, or its exit code, or the signal that kills it.
    """
    os.dup2(1, 2)  # one log for all that it says
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    print(f"rank {rank} of {world_size} is there", flush=True)
    peers = _meet(rank, world_size)
    if rank == (int(culprit) + 1) % world_size or (rank == int(culprit) and way in _STUMBLES):
        _stumble()
    for step in range(1, NUM_STEPS + 1):
        if rank == int(culprit) and step == FAILS_AT:
            _fail(way, text, peers)
        if rank == (int(culprit) + 2) % world_size and step == FAILS_AT and way in _UNNOTICED:
            print("writing a checkpoint", flush=True)
            time.sleep(PATIENCE_S)  # until torchrun ends it
        _all_reduce(rank, peers)
        print(f"rank {rank}: step {step}", flush=True)
        time.sleep(PAUSE_S)


def _meet(rank, world_size):
    if rank == 0:
        with socket.socket(socket.AF_UNIX) as door:
            door.bind("door.new")
            door.listen(world_size)
            os.rename("door.new", "door")  # it is there when it can be used
            door.settimeout(PATIENCE_S)
            return [door.accept()[0] for _ in range(world_size - 1)]
    until = time.monotonic() + PATIENCE_S
    while not os.path.exists("door") and time.monotonic() < until:
        time.sleep(0.005)
    peer = socket.socket(socket.AF_UNIX)
    peer.connect("door")
    return [peer]


def _all_reduce(rank, peers):
    try:
        if rank:
            peers[0].sendall(b"1")
        heard = [peer.recv(1) for peer in peers]
        if rank == 0:
            for peer in peers:
                peer.sendall(b"1")
    except OSError:
        heard = [b""]
    if not all(heard):
        raise ConnectionError("Connection closed by peer")


def _stumble():
    # An error that a rank has survived is no cause.
    try:
        raise OSError("cache.bin is busy")
    except OSError:
        traceback.print_exc()
        print("reading it from the disk instead", flush=True)


def _fail(way, text, peers):
    if way == "raised":
        raise ValueError(text)
    if way == "late":
        try:
            raise KeyError(text)
        except KeyError:
            traceback.print_exc()
            print("cleaning up", flush=True)
            for peer in peers:
                peer.close()
            time.sleep(PATIENCE_S)
    if way == "exited":
        os._exit(int(text))
    if way == "killed":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # nobody needs a core dump
        os.kill(os.getpid(), int(text))
    if way == "left":
        print("my share of the data is through", flush=True)
        os._exit(0)  # at once: its peers must not notice it before torchrun can


if __name__ == "__main__":
    main(*sys.argv[1:])
