"""
Tests that a cell never hangs: every kind of fault, at 2 and at 4 ranks, in a real kernel.

After each fault the prompt is back in time, and the error's first line names the culprit and its
line. The healthy ranks keep their variables, and the next collective works. A repeated fault leaves
no process, thread, descriptor or port behind.
"""

import gc

import psutil
import pytest
from fault_player import PROMPT_S, Kernels, fault_of
from faults import KINDS
from waiting import comes_true

pytestmark = [pytest.mark.timeout(300)]

CLOSES_WITHIN_S = 10.0
NUM_SETTLING = {True: 2, False: 1}
"""
How often to play a fault before leftovers are counted, keyed by whether the fault needs a DDP
model: torch keeps the last group of such a model.
"""


@pytest.fixture(scope="module")
def kernels():
    """
    Yield a pool of kernels. The faults of one world size happen in one kernel, one after another,
    as in a lesson.
    """
    kernels = Kernels()
    yield kernels
    kernels.close()


def footprints(kernel, without):
    """
    Count descriptors, threads, listening ports and children of the kernel, the supervisor and the
    ranks, after a garbage collection.
    """
    collected = kernel.run("%%px\nimport gc\nn = gc.collect()")
    assert collected.status == "ok", collected
    gc.collect()
    pids = kernel.value("dict(ranks.supervisor.pids)")
    pids = {f"rank {rank}": pid for rank, pid in pids.items() if rank not in without}
    pids["supervisor"] = kernel.value("ranks.supervisor.supervisor_pid")
    pids["kernel"] = kernel.pid
    # not counted: ZMQ connects at any time
    lines = set(kernel.value("ranks.control.controller_ports"))
    held = {}
    for name, pid in pids.items():
        process = psutil.Process(pid)
        connections = process.net_connections()
        held[name] = {
            "fds": process.num_fds()
            - sum(bool(c.raddr) and c.raddr.port in lines for c in connections),
            "threads": process.num_threads(),
            "listening": sum(c.status == psutil.CONN_LISTEN for c in connections),
            "children": len(process.children(recursive=True)),
        }
    return held


@pytest.mark.parametrize("world_size", [pytest.param(n, id=f"{n}_ranks") for n in (2, 4)])
@pytest.mark.parametrize("kind", KINDS)
def test_fault_gives_the_prompt_back_and_leaves_nothing(kernels, world_size, kind):
    """
    A fault gives the prompt back in time and names its culprit, and repeating it leaves no more
    processes, threads, descriptors or ports than before.

    torch keeps the last group of a DDP model, with up to one open socket for each peer. A fault
    with a model is therefore played once for each rank: if every fault leaked a descriptor, there
    would be more of them than torch keeps.
    """
    fault = fault_of(kind, world_size)
    num_plays = world_size if KINDS[kind].needs_model else 1
    without = fault.ranks("CD") if KINDS[kind].loses_variables else []
    with kernels.player(world_size) as player:
        for _ in range(NUM_SETTLING[KINDS[kind].needs_model]):
            player.play(fault, limit_s=PROMPT_S)
        before = footprints(player.kernel, without)
        for _ in range(num_plays):
            player.play(fault, limit_s=PROMPT_S)

        def grown():
            after = footprints(player.kernel, without)
            return [
                (holder, what, before[holder][what], count)
                for holder, counts in after.items()
                for what, count in counts.items()
                if count >= before[holder][what] + num_plays
            ]

        # Gloo's own threads close unused sockets a moment later.
        assert comes_true(lambda: not grown(), CLOSES_WITHIN_S), grown()
