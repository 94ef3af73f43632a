"""
Tests of TestBed, which starts hosts from Python: its orders to the script, its messages, its end.
"""

import contextlib
import io
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch.distributed as dist
from paths import ROOT
from worlds import run_world

from ddp_lessons.course.notebooks.canonical import read_notebook
from ddp_lessons.errors import BadInput
from ddp_lessons.launch.environment import free_port
from ddp_lessons.many_machines import TestBed, bed, even_layout, on_hosts, split_hosts, why_no_hosts
from ddp_lessons.many_machines.stored import STORED, stored_output

EXECUTED = ROOT / "notebooks" / "executed" / "17_many_machines.ipynb"
FAKE = """#!/bin/bash
# Plays hosts.sh: notes its orders, and runs commands here.

echo "$*" >>"{log}"
case $1 in
up) mkdir -p "$DDP_LESSONS_HOSTS"; echo 10.213.20 >"$DDP_LESSONS_HOSTS/net" ;;
down) rm -rf "$DDP_LESSONS_HOSTS" ;;
run) shift 2; exec "$@" ;;
off) echo "node$2 is off" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def orders(tmp_path, monkeypatch):
    """
    Replace hosts.sh by a script that notes its orders, and return a function that reads them.
    """
    log, script = tmp_path / "log", tmp_path / "hosts.sh"
    script.write_text(FAKE.replace("{log}", str(log)))
    script.chmod(0o755)
    monkeypatch.setattr(bed, "SCRIPT", script)
    monkeypatch.setattr(bed, "why_no_hosts", lambda: "")
    return lambda: log.read_text().splitlines()


def test_orders_go_to_the_script_and_down_comes_last(orders):
    """
    Each method calls hosts.sh, and the hosts are taken down exactly once, at the end of the block.
    """
    with TestBed(2, rate="100mbit") as hosts:
        assert hosts.net == "10.213.20"
        hosts.cut(2)
        hosts.mend(2)
        with hosts.start(1, "python -c print(17)") as job:
            assert job.wait(30) == 0
            assert job.stdout == "17\n"
        with hosts.start(2, ["echo", "here"]) as job:
            job.wait(30)
    first, *middle, last = orders()
    assert (first, last) == ("up 2 --rate 100mbit", "down")
    assert middle[:2] == ["cut 2", "mend 2"]
    assert middle[3] == "run 2 echo here"
    hosts.down()
    assert orders()[-1] == "down"
    assert orders().count("down") == 1


def test_what_the_script_refuses_is_told_and_all_is_taken_down(orders):
    """
    If hosts.sh fails, BadInput quotes its message, and the hosts are taken down.
    """
    hosts = TestBed(1)
    with pytest.raises(BadInput, match="node1 is off"):
        hosts.off(1)
    assert orders() == ["up 1", "off 1", "down"]


def test_why_there_can_be_none_is_said_in_words(monkeypatch, tmp_path):
    """
    why_no_hosts() names the first missing condition, or nothing where hosts can be started.
    """
    monkeypatch.setattr(bed, "SCRIPT", tmp_path / "none.sh")
    assert "comes with the course's repository" in why_no_hosts()
    monkeypatch.setattr(bed, "SCRIPT", Path(__file__))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "needs root" in why_no_hosts()
    with pytest.raises(BadInput, match="needs root"):
        TestBed(2)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(bed, "_TOOLS", ("ip-of-nobody",))
    assert why_no_hosts() == "hosts.sh needs ip-of-nobody"
    monkeypatch.setattr(bed, "_TOOLS", ())
    for code, said in ((1, "a container needs --privileged"), (0, "")):
        done = subprocess.CompletedProcess([], code)
        monkeypatch.setattr(subprocess, "run", lambda *args, done=done, **kwargs: done)
        assert said in why_no_hosts()
    assert why_no_hosts() == ""


needs_hosts = pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "there are some")


@needs_hosts
def test_hosts_of_a_notebook_that_is_killed_are_taken_down(tmp_path):
    """
    Hosts of a notebook that is killed are taken down by another process: network devices and
    namespaces do not end with their process.
    """
    script = (
        "import os, signal\n"
        "from ddp_lessons.many_machines import TestBed\n"
        "hosts = TestBed(1)\n"
        "print(hosts.net, hosts._keeper.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    net, keeper = done.stdout.split()
    assert done.returncode == -9
    if psutil.pid_exists(int(keeper)):
        psutil.Process(int(keeper)).wait(30)
    path = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    for words in (["ip", "-o", "link"], ["ip", "netns", "list"]):
        told = subprocess.run(words, capture_output=True, text=True, env=path, check=True).stdout
        assert f"ddp{net.replace('.', '')}" not in told


def test_what_runs_on_hosts_runs_on_this_one():
    """
    The report of lesson 17 runs on this machine's ranks: its lines are the same, though all four
    ranks share the loopback.
    """
    first, *others = run_world(4, reported, timeout_s=120)
    assert others == [[], [], []]
    assert [line for line in first if "this machine" in line] == first[:1]
    assert sum("times as much" in line for line in first) == 1


def reported(rank, world_size):
    """
    Write the report, do all-reduces for 0.1 s, and return the lines.
    """
    lines: list = []
    say = lines.append if rank == 0 else lambda line: None
    on_hosts.report("lo", split_hosts(even_layout(2, 2)), say)
    assert on_hosts.rounds(0.1, say) is None
    return lines


def test_rounds_tell_of_one_who_is_late_and_of_one_who_is_gone():
    """
    `rounds` distinguishes an all-reduce that is late from one that fails because a rank has left.
    """
    said = run_world(2, lose_one, timeout_s=60)[0]
    assert said[0] == "an all-reduce took longer, and came out: sum 2"
    assert said[-1].startswith("an all-reduce failed after ")


def lose_one(rank, world_size):
    """
    Make rank 1 join one all-reduce a second late and then leave. Return the lines of rank 0.
    """
    import time

    lines: list = []
    if rank == 0:
        on_hosts.GAP_S = 0.2
        dist.distributed_c10d._get_default_store().set("begins", "yes")
        on_hosts.rounds(60, lines.append)
        return lines
    dist.distributed_c10d._get_default_store().wait(["begins"])
    time.sleep(1.0)
    dist.all_reduce(on_hosts.torch.tensor([0.0, 1.0]))
    dist.destroy_process_group()
    return lines


def test_it_runs_by_the_variables_that_torchrun_sets():
    """
    The whole module runs with the variables that torchrun sets, over the loopback, for 0.1 s.
    """
    assert run_world(2, run_main, free_port(), join=False) == ["rounds begin", None]


def run_main(rank, world_size, port):
    """
    Run the module as a script, and return the last line that it prints on rank 0.
    """
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "CABLE": "lo",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ROUNDS_S": "0.1",
    }  # fmt: skip
    del sys.modules["ddp_lessons.many_machines.on_hosts"]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        runpy.run_module("ddp_lessons.many_machines.on_hosts", run_name="__main__")
    return said.getvalue().splitlines()[-1] if rank == 0 else None


def test_stored_output_is_plainly_marked():
    """
    Each line of a stored output is marked, so that no reader takes it for a real run.
    """
    first, *lines = stored_output("cable", "needs root").splitlines()
    assert first == "No hosts here: needs root. Where there are, this came out:"
    assert [line.removeprefix("  stored | ") for line in lines] == STORED["cable"].splitlines()
    with pytest.raises(BadInput, match="got 'wire'"):
        stored_output("wire", "")


def test_what_is_stored_was_printed():
    """
    The stored outputs are those of the executed notebook: a rebuilt lesson fails here until they
    are updated.
    """
    cells = [cell for cell in read_notebook(EXECUTED).cells if cell.cell_type == "code"]
    texts = ["".join(out.get("text", "") for out in cell.outputs) for cell in cells]
    for name, stored in STORED.items():
        assert sum(stored in text for text in texts) == 1, f"the notebook has not printed {name}"


def test_nothing_of_the_script_is_missing():
    """
    TestBed uses the script of this repository, which exists.
    """
    assert shutil.which("bash")
    assert bed.SCRIPT.exists()
