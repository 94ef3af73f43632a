"""
Join and leave a group over a file, TCP and the environment, compared with torch's view of the
group.
"""

import os
import subprocess
import sys

import psutil
import pytest
import torch
import torch.distributed as dist
from waiting import HANGS_AFTER_S
from worlds import run_world

from ddp_lessons.errors import BadInput
from ddp_lessons.process_group import (
    env_store,
    file_store,
    join_group,
    join_group_env,
    join_group_store,
    join_group_tcp,
    leave_group,
    rank_device,
    tcp_store,
)

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def _publish(folder, port):
    file_store(f"{folder}/port", -1).set("port", str(port))


def _published(folder):
    return int(file_store(f"{folder}/port", -1).get("port"))


def _join_file(rank, world_size, folder):
    join_group(f"{folder}/store", rank, world_size, deadline_s=HANGS_AFTER_S)


def _join_file_as_torch_waits(rank, world_size, folder):
    join_group(f"{folder}/store", rank, world_size)


def _join_tcp(rank, world_size, folder):
    port = _published(folder) if rank else 0
    publish = (lambda port: _publish(folder, port)) if rank == 0 else None
    join_group_tcp("127.0.0.1", port, rank, world_size, deadline_s=HANGS_AFTER_S, publish=publish)


def _join_env(rank, world_size, folder):
    # Rank 0 holds the store outside the group, as torchrun's agent does.
    store = tcp_store("127.0.0.1", 0, 0, HANGS_AFTER_S) if rank == 0 else None
    if store is not None:
        _publish(folder, store.port)
    values = (str(rank), str(world_size), "127.0.0.1", str(_published(folder)))
    os.environ.update(zip(VARIABLES, values, strict=True), TORCHELASTIC_USE_AGENT_STORE="True")
    join_group_env(deadline_s=HANGS_AFTER_S)
    return store


def _join_add_leave(rank, world_size, join, folder):
    held = join(rank, world_size, folder)
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    seen = (dist.get_rank(), dist.get_world_size(), dist.get_backend(), total.item())
    dist.barrier()
    leave_group()
    del held
    return (*seen, dist.is_initialized())


@pytest.mark.parametrize("join", [_join_file, _join_file_as_torch_waits, _join_tcp, _join_env])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_join_makes_a_group_that_adds_up(tmp_path, world_size, join):
    """
    The group has the requested size, numbers and backend, makes an all-reduce, and ends.
    """
    seen = run_world(world_size, _join_add_leave, join, str(tmp_path), join=False)
    total = float(sum(range(1, world_size + 1)))
    assert seen == [(rank, world_size, "gloo", total, False) for rank in range(world_size)]


SCRIPT = """
import torch, torch.distributed as dist
from ddp_lessons.process_group import join_group_env, leave_group
join_group_env(deadline_s=120.0)
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == dist.get_world_size() == 2
leave_group()
"""


def _fail_alone_then_join(rank, world_size, folder):
    if rank == 0:
        with pytest.raises(BadInput):
            join_group(f"{folder}/alone", rank, world_size, timeout_s=0)
        with pytest.raises(RuntimeError):  # torch's error, which names no rank
            join_group(f"{folder}/alone", rank, world_size, timeout_s=0.001)
    return _join_add_leave(rank, world_size, _join_file, folder)[3]


def test_join_group_works_after_one_rank_has_failed_to_join(tmp_path):
    """
    torch counts a failed join on that rank only. The next join must work nevertheless, and not wait
    for ever.
    """
    assert run_world(2, _fail_alone_then_join, str(tmp_path), join=False) == [3.0, 3.0]


def test_join_group_env_joins_what_torchrun_starts(tmp_path):
    """
    A script under torchrun joins by torchrun's variables, and uses the store of its agent.
    """
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node=2", str(script)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_env_store_without_an_agent_is_held_by_rank_0(monkeypatch):
    """
    If a launcher sets only the four variables, rank 0 holds the store.
    """
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    for name, value in zip(VARIABLES, ("0", "1", "127.0.0.1", "0"), strict=True):
        monkeypatch.setenv(name, value)
    store, rank, world_size = env_store(5.0)
    store.set("key", "value")
    assert (store.get("key"), rank, world_size) == (b"value", 0, 1)


def test_env_store_names_every_variable_that_is_missing(monkeypatch):
    """
    The error names all missing variables at once. torch names one on each try, so the user would
    need four tries.
    """
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(BadInput) as refused:
        env_store(1.0)
    assert str(refused.value) == (
        "The environment does not say how to join: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT "
        "(got no RANK, no WORLD_SIZE, no MASTER_ADDR, no MASTER_PORT). Set them, or start with "
        "torchrun, which does."
    )
    for name in VARIABLES:
        monkeypatch.setenv(name, "first")
    with pytest.raises(BadInput, match=r"RANK is no number: a whole number \(got 'first'\)\."):
        env_store(1.0)


@pytest.mark.parametrize(("port", "rank"), [(-1, 0), (65536, 1), (0, 1)])
def test_tcp_store_refuses_a_port_that_cannot_be(port, rank):
    """
    Port 0 lets the system of the store's owner choose a port. For the other ranks it is no address.
    """
    with pytest.raises(BadInput, match="The port of the store is none"):
        tcp_store("127.0.0.1", port, rank, 1.0)


def _listens_at(port, pid=None):
    found = psutil.Process(pid).net_connections("tcp")
    return {c.laddr.ip for c in found if c.laddr.port == port and c.status == psutil.CONN_LISTEN}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_tcp_store_of_this_machine_is_closed_to_all_others(host):
    """
    A store has no password, so ours listens on loopback for a local host. torch's listens on every
    network, also then.
    """
    everywhere = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    assert _listens_at(everywhere.port) <= {"::", "0.0.0.0"}
    store = tcp_store(host, 0, 0, HANGS_AFTER_S)
    assert _listens_at(store.port) == {"127.0.0.1"}
    tcp_store(host, store.port, 1, HANGS_AFTER_S).set("key", "value")
    assert store.get("key") == b"value"
    with pytest.raises(OSError, match="in use"):
        tcp_store(host, store.port, 0, 30.0)


def test_tcp_store_listens_only_there_if_it_is_told():
    """
    A host may be in several networks, and the store listens only on the requested address. Here
    127.0.0.2 stands for an address other than loopback's.
    """
    store = tcp_store("127.0.0.2", 0, 0, HANGS_AFTER_S, only_there=True)
    assert _listens_at(store.port) == {"127.0.0.2"}
    tcp_store("127.0.0.2", store.port, 1, HANGS_AFTER_S).set("key", "value")
    assert store.get("key") == b"value"
    with pytest.raises(OSError, match="assign requested address"):
        tcp_store("192.0.2.1", 0, 0, HANGS_AFTER_S, only_there=True)


TELL_STORE = """
import os, psutil
listening = [c for c in psutil.Process(os.getppid()).net_connections() if c.status == "LISTEN"]
print({c.laddr.ip for c in listening if c.laddr.port == int(os.environ["MASTER_PORT"])})
"""


def test_torchrun_opens_its_store_to_every_network(tmp_path):
    """
    torchrun's store listens on every network, as lesson 01 and docs/security.md say. If a new torch
    repairs this, they must change.
    """
    (tmp_path / "tell.py").write_text(TELL_STORE)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run([*command, tmp_path / "tell.py"], capture_output=True, text=True)
    assert done.stdout in ("{'::'}\n", "{'0.0.0.0'}\n"), done.stderr


@pytest.mark.parametrize(
    ("rank", "world_size", "backend", "timeout_s", "message"),
    [
        (0, 0, "gloo", None, "The world is empty"),
        (4, 4, "gloo", None, "The rank is not of this world"),
        (0, 1, "gloo", 0, "The timeout leaves no time: seconds above 0 "),
        (0, 1, "nonsense", None, "There is no backend nonsense: "),
    ],
)
def test_join_group_refuses_before_it_opens_anything(
    tmp_path, rank, world_size, backend, timeout_s, message
):
    """
    Bad arguments are refused before the rank meets the others, because they would wait for it.
    """
    with pytest.raises(BadInput) as refused:
        join_group(tmp_path / "store", rank, world_size, backend, timeout_s=timeout_s)
    assert str(refused.value).startswith(message)
    assert not (tmp_path / "store").exists()
    assert not dist.is_initialized()


def test_join_group_inside_a_group_is_refused(lone_group):
    """
    A cell that joins and is run twice gets an error that says what to do.
    """
    with pytest.raises(BadInput) as refused:
        join_group_store(dist.HashStore(), 0, 1)
    assert str(refused.value) == (
        "This process is in a group: it can be in one default group (got rank 0 of 1). "
        "Call leave_group() first."
    )


def test_leave_group_outside_a_group_does_nothing():
    """
    Leaving twice is no error, because a lesson's last cell may run twice.
    """
    leave_group()
    assert not dist.is_initialized()


def test_rank_device_is_what_start_ranks_chose(monkeypatch):
    """
    The rank's device is that of its placement. Without a placement it is the CPU, if there is no
    GPU.
    """
    monkeypatch.setenv("DDP_LESSONS_DEVICE", "cuda:3")
    assert rank_device() == torch.device("cuda:3")
    monkeypatch.delenv("DDP_LESSONS_DEVICE")
    if not torch.cuda.is_available():
        assert rank_device() == torch.device("cpu")


@pytest.mark.gpu
def test_rank_device_spreads_local_ranks_over_gpus(monkeypatch):
    """
    Under torchrun each local rank has its own GPU.
    """
    monkeypatch.delenv("DDP_LESSONS_DEVICE", raising=False)
    monkeypatch.setenv("LOCAL_RANK", str(torch.cuda.device_count()))
    assert rank_device() == torch.device("cuda:0")


@pytest.mark.gpu
def test_join_group_binds_nccl_to_its_gpu(tmp_path):
    """
    NCCL's first collective must use the GPU that was requested.
    """
    join_group(tmp_path / "store", 0, 1, "nccl", torch.device("cuda:0"), deadline_s=HANGS_AFTER_S)
    total = torch.ones(1, device="cuda:0")
    dist.all_reduce(total)
    assert total.item() == 1.0
    leave_group()
