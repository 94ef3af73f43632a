"""
Tests of `init_process_group` calls of a user that cannot succeed and that torch's timeout does not
end.
"""

import pytest
from kernels import running_kernel

pytestmark = [pytest.mark.timeout(180)]

PREPARE = """%%px
import os, time
from datetime import timedelta
import torch.distributed as dist
from ddp_lessons.ranks.rank.rank_agent import current_agent
rank = current_agent().rank
keep = 100 + rank

def join(port, limit_s, world_size=4):
    address = f"tcp://127.0.0.1:{port}"
    limit = timedelta(seconds=limit_s)
    dist.init_process_group(
        "gloo", init_method=address, rank=rank, world_size=world_size, timeout=limit
    )
"""
FREE_PORT = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    ranks.view["port"] = server.getsockname()[1]
"""
HELD_PORT = """
import socket
held = socket.create_server(("127.0.0.1", 0))
ranks.view["port"] = held.getsockname()[1]
"""
JOIN = "%%px\njoin(port, 30)\ndist.barrier()\nprint(keep)\ndist.destroy_process_group()"


@pytest.fixture(scope="module")
def kernel():
    """
    Yield a kernel with four ranks that have joined no group.
    """
    with running_kernel() as kernel:
        start = "from ddp_lessons import start_ranks\nranks = start_ranks(4, join=False)"
        assert kernel.run(start).status == "ok"
        assert kernel.run(PREPARE).status == "ok"
        yield kernel


def joins_again(kernel):
    """
    Assert that the ranks have kept their variables, and can join at a port that is not in use.
    """
    assert kernel.run(FREE_PORT).status == "ok"
    result = kernel.run(JOIN)
    assert (result.status, result.text.split("\n")[-5:-1]) == (
        "ok",
        ["[0] 100", "[1] 101", "[2] 102", "[3] 103"],
    ), result


def test_a_port_that_another_program_holds(kernel):
    """
    If another program uses the port, rank 0 catches its error and finishes, and the other ranks
    look for its store for ever. The deadlock is found and explained.
    """
    assert kernel.run(HELD_PORT).status == "ok"
    result = kernel.run(
        "%%px\ntry:\n    join(port, 3)\nexcept Exception as error:\n    print(error)"
    )
    assert result.evalue.startswith(
        "Deadlock: rank 0 finished the cell without init_process_group; ranks 1-3 wait in "
        "init_process_group"
    ), result
    assert result.seconds < 8.0  # torch retries until its timeout of three seconds is over
    assert "address already in use" in result.text
    joins_again(kernel)


def test_a_rank_that_nobody_started(kernel):
    """
    A world size that is one too large ends with torch's own error, within the timeout of the call.
    """
    assert kernel.run(FREE_PORT).status == "ok"
    result = kernel.run("%%px\njoin(port, 2, world_size=5)")
    assert "timeout after 2000ms" in result.evalue
    assert result.seconds < 6.0
    joins_again(kernel)


def test_a_rank_alone_that_has_failed_to_join_before(kernel):
    """
    If one rank has failed to join before, the next join of all ranks ends with an explanation:
    torch counted the failed attempt on that rank only, so the ranks use different group numbers.
    """
    failed = """%%px
if rank == 2:
    try:
        store = dist.FileStore(os.environ["FOLDER"], 2)
        dist.init_process_group(
            "gloo", store=store, rank=0, world_size=2, timeout=timedelta(seconds=1)
        )
    except Exception as error:
        print(type(error).__name__)
"""
    folder = "%%px\nimport tempfile\nos.environ['FOLDER'] = tempfile.mkdtemp() + '/store'"
    assert kernel.run(folder).status == "ok"
    assert kernel.run(failed).text == "[2] RuntimeError\n"
    assert kernel.run(FREE_PORT).status == "ok"
    result = kernel.run("%%px\njoin(port, 1800)")
    assert result.evalue.startswith(
        "Deadlock: rank 2 joins as group 1, where ranks 0, 1 and 3 join as group 0: an "
        "init_process_group that failed counts too, and ranks meet only under the same number"
    ), result
    assert result.seconds < 5.0
    joins_again(kernel)


def test_a_rank_alone_that_raises_as_it_joins_may_try_again(kernel):
    """
    If a failed join ends the cell with its error, torch's count of it is reset, and all ranks can
    join.
    """
    failed = """%%px
if rank == 2:
    store = dist.FileStore(tempfile.mkdtemp() + "/store", 2)
    dist.init_process_group("gloo", store=store, rank=0, world_size=2, timeout=timedelta(seconds=1))
"""
    assert kernel.run(failed).ename == "RankRaised"
    joins_again(kernel)
