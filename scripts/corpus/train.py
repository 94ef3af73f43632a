"""
A rank of a small training job in which a rank fails at step 4. It needs no torch.

torchrun sets RANK and WORLD_SIZE. The variable JOB has the fields of a `failing_jobs.Plan` as JSON.

The ranks add up a number in each step, over a socket in the current folder: rank 0 receives from
all ranks, and answers all. A rank that loses its peer raises ConnectionError.
"""

import json
import os
import resource
import signal
import socket
import sys
import time
import traceback

NUM_STEPS, FAILS_AT = 400, 4
PAUSE_S = 0.01
LONG_S = 120.0  # longer than the job, which torchrun ends before
LINE_EVERY_S = 0.1  # pause after a line of a traceback on a slow disk


def main(job):
    """
    Train until the job fails.

    Args:
        job: The fields of a `failing_jobs.Plan`.
    """
    os.dup2(1, 2)  # one log for stdout and stderr
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if job["has_slow_disk"]:
        sys.excepthook = print_slowly
    print(f"rank {rank} of {world_size} has started", flush=True)
    peers = connect(rank, world_size)
    if rank in job["survivors"]:
        read_cache()
    for step in range(1, NUM_STEPS + 1):
        if step == FAILS_AT and rank == job["busy"]:
            print("writing a checkpoint", flush=True)
            time.sleep(LONG_S)
        if step == FAILS_AT and rank == job["culprit"]:
            FAILURES[job["kind"]](job["detail"], peers)
        all_reduce(rank, peers)
        print(f"rank {rank}: step {step}", flush=True)
        time.sleep(PAUSE_S)


def connect(rank, world_size):
    """
    Return the sockets of all other ranks on rank 0, and the socket of rank 0 elsewhere.
    """
    if rank == 0:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("socket.new")
            listener.listen(world_size)
            os.rename("socket.new", "socket")  # the name appears once ranks can connect
            return [listener.accept()[0] for _ in range(world_size - 1)]
    while not os.path.exists("socket"):
        time.sleep(0.005)
    peer = socket.socket(socket.AF_UNIX)
    peer.connect("socket")
    return [peer]


def all_reduce(rank, peers):
    """
    Add up a number over all ranks.
    """
    try:
        if rank:
            peers[0].sendall(b"1")
        received = [peer.recv(1) for peer in peers]
        if rank == 0:
            for peer in peers:
                peer.sendall(b"1")
    except OSError:
        received = [b""]
    if not all(received):
        raise ConnectionError("Connection closed by peer")


def read_cache():
    """
    Raise an error, catch it, and print its traceback.
    """
    try:
        raise OSError("cache.bin is busy")
    except OSError:
        traceback.print_exc()
        print("reading it from the disk instead", flush=True)


def check_batch(detail, peers):
    """
    Raise an error that ends the rank.
    """
    raise ValueError(detail)


def save_checkpoint(detail, peers):
    """
    Raise an OSError with its number and message, which ends the rank.
    """
    raise OSError(*detail)


def load_batch(detail, peers):
    """
    Raise an error, print its traceback, close the connections, and take long to end.
    """
    try:
        raise KeyError(detail)
    except KeyError:
        traceback.print_exc()
        print("cleaning up", flush=True)
        for peer in peers:
            peer.close()
        time.sleep(LONG_S)


def kill(detail, peers):
    """
    End this rank by a signal.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), detail)


def leave(detail, peers):
    """
    End with exit code 0, like a rank that has fewer batches than the others.
    """
    print("no batch is left", flush=True)
    os._exit(0)  # at once, so that torchrun may see this end before the peers do


FAILURES = {
    "raised": check_batch,
    "disk": save_checkpoint,
    "late": load_batch,
    "exited": lambda detail, peers: os._exit(detail),
    "killed": kill,
    "left": leave,
}


def print_slowly(kind, error, trace):
    """
    Print a traceback line by line. torchrun may end the rank before its last line.
    """
    for line in traceback.format_exception(kind, error, trace):
        print(line, end="", flush=True)
        time.sleep(LINE_EVERY_S)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job may ignore it
    main(json.loads(os.environ["JOB"]))
