"""
Tests that a script written for torchrun runs unchanged under other launchers.
"""

import json
import os
import runpy
import subprocess
import sys

import pytest
import torch.distributed as dist
from waiting import wait_until

from ddp_lessons.errors import BadInput
from ddp_lessons.jobs import start_job
from ddp_lessons.launch import LAUNCHERS, command_of, is_here
from ddp_lessons.launch.example import known_addresses, num_different, start_by, wait_for_lines
from ddp_lessons.launch.lives import join_life, life_of
from ddp_lessons.launch.running import main

TELL = """\
import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
told = [os.environ[name] for name in names]
with open(f"{os.environ['OUT']}/told-{told[0]}.json", "w") as file:
    json.dump([*told, *sys.argv[1:], __name__], file)
"""
OURS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture
def script(tmp_path, monkeypatch):
    """
    Yield a script that writes its variables and arguments to a file in the folder of the variable
    OUT.
    """
    for name in [*OURS, *filter(lambda name: name.startswith(("OMPI", "SLURM_")), os.environ)]:
        if name != "SLURM_CONF":
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "tell.py"
    path.write_text(TELL)
    yield path
    for name in OURS:
        os.environ.pop(name, None)  # set by the functions under test


def told(folder, rank):
    """
    Return the list that the script has written on a rank.
    """
    return json.loads((folder / f"told-{rank}.json").read_text())


def test_main_tells_torch_what_mpiexec_has_told(script, tmp_path, monkeypatch):
    """
    Under mpiexec `python -m ddp_lessons.launch` sets torch's variables and runs the script with its
    arguments, as `python` would.
    """
    for name, value in (("RANK", "3"), ("SIZE", "4"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    monkeypatch.setattr(sys, "argv", ["launch", str(script), "--lr", "0.1"])
    runpy.run_module("ddp_lessons.launch", run_name="__main__")
    place = ["3", "4", "1", "127.0.0.1", "29500"]
    assert told(tmp_path, 3) == [*place, "--lr", "0.1", "__main__"]


def test_main_spawns_ranks_of_its_own(script, tmp_path):
    """
    With `--spawn` the module starts the ranks itself, without another launcher.
    """
    main(["--spawn", "2", str(script), "more"])
    one, other = told(tmp_path, 0), told(tmp_path, 1)
    assert [one[:3], other[:3]] == [["0", "2", "0"], ["1", "2", "1"]]
    assert one[3:] == other[3:] == ["127.0.0.1", one[4], "more", "__main__"]


@pytest.mark.parametrize("launcher", ["mpiexec", "srun"])
def test_launcher_that_is_here_starts_ranks(launcher, script, tmp_path):
    """
    mpiexec and srun start two ranks of the script. CI has both; elsewhere a missing one is skipped.
    """
    if not is_here(launcher, os.environ):
        pytest.skip(f"no {launcher} on this machine")
    job = start_by(launcher, tmp_path, "tell.py")
    assert job.wait(60) == 0, job.stderr
    (tmp_path / launcher).rename(tmp_path / "out")
    assert [told(tmp_path / "out", rank)[:2] for rank in range(2)] == [["0", "2"], ["1", "2"]]


def test_commands_are_what_one_types():
    """
    The commands are those that a user would type. For a launcher that does not set torch's
    variables, a command contains our module, which sets them.
    """
    words = {name: command_of(name, 2, "train.py")[0] for name in LAUNCHERS}
    assert words["torchrun"][2:] == [
        "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--local-ranks-filter=0",
        "train.py",
    ]  # fmt: skip
    assert words["launch"][2] == "torch.distributed.launch"
    assert words["spawn"][2:] == ["ddp_lessons.launch", "--spawn", "2", "train.py"]
    assert words["mpiexec"][:4] == ["mpiexec", "--oversubscribe", "-n", "2"]
    assert words["srun"][:3] == ["srun", "-n", "2"]
    raw, needed = command_of("srun", 2, "train.py", adopts=False)
    assert raw[3:] == [sys.executable, "train.py"]
    assert "MASTER_PORT" not in needed
    with pytest.raises(BadInput, match=r"expected one of torchrun, launch.* \(got 'mpirun'\)"):
        command_of("mpirun", 2, "train.py")


def test_is_here_looks_for_the_program_and_for_slurms_settings(tmp_path):
    """
    A launcher counts as present if its program exists, and srun only with Slurm's settings: without
    a cluster it would wait for ever.
    """
    assert is_here("torchrun", os.environ)
    assert not is_here("mpiexec", {"PATH": str(tmp_path)})
    program = tmp_path / "srun"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    assert not is_here("srun", {"PATH": str(tmp_path)})
    assert is_here("srun", {"PATH": str(tmp_path), "SLURM_CONF": "slurm.conf"})


def test_join_life_reads_nothing_of_an_earlier_life(monkeypatch):
    """
    After a restart ranks read no key of an earlier life: torchrun's store outlives the ranks, and
    each life has its own prefix there.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    environ = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    environ |= {"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for life in range(2):
        environ["TORCHELASTIC_RESTART_COUNT"] = str(life)
        assert join_life(environ=environ) == life
        dist.destroy_process_group()
        keys = [key for key in store.list_keys() if f"life {life}" in key]
        assert keys
    assert known_addresses(0) == 0
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert known_addresses(1) == 0
    store.set("default//cpu//0/1", "an address")
    assert known_addresses(1) == 1


def test_join_life_without_torchrun_has_rank_0_hold_the_store(monkeypatch):
    """
    Without torchrun rank 0 holds the store, as with torch's env://.
    """
    for name in OURS:
        monkeypatch.delenv(name, raising=False)
    from ddp_lessons.launch import free_port

    environ = {"MASTER_PORT": str(free_port())}
    assert life_of(environ) == 0
    assert join_life(environ=environ) == 0
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    dist.destroy_process_group()


def test_wait_for_lines_ends_with_the_job_or_with_the_lines():
    """
    wait_for_lines returns when the job has printed the lines, when the time is over, or when the
    job has ended.
    """
    code = "import time; print(1); print(2, flush=True); time.sleep(60)"
    with start_job([sys.executable, "-c", code]) as job:
        wait_for_lines(job, 2)
        assert job.stdout == "1\n2\n"
        wait_for_lines(job, 3, within_s=0.2)
        assert job.is_running
    wait_for_lines(job, 3)
    wait_until(lambda: not job.is_running, 10, "its end")


def test_num_different_counts_bits(tmp_path):
    """
    Losses that differ in their last bit only count as different.
    """
    (tmp_path / "job").mkdir()
    for folder, losses in ((tmp_path, [0.1, 0.3]), (tmp_path / "job", [0.1, 0.1 + 0.2])):
        for rank in range(2):
            (folder / f"losses-{rank}.json").write_text(json.dumps(losses))
    assert num_different(tmp_path, "job") == 2


def test_package_of_launchers_needs_no_torch():
    """
    The package of launchers does not import torch, so that a kernel that only starts jobs stays
    small.
    """
    code = "import sys, ddp_lessons.launch; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
