"""
Tests of ranks in a Slurm job on two nodes: faults are handled as for ranks on this machine.
"""

import os
import re
import signal
import subprocess
import threading
import time

import pytest
from kernels import running_kernel
from launched import assert_in_order, blocks, configure, failing, prepare
from processes import new_mark, wait_until_gone
from throw_away_slurm import engines_on, needs_slurm, queue, running_slurm
from waiting import wait_until

from ddp_lessons import ranks as sets_of_ranks
from ddp_lessons import stop_ranks
from ddp_lessons.errors import CellStopped, RankDied, RankRaised, RanksGone, StartFailed
from ddp_lessons.ranks.kernel.cells import run_cell

START, SETTINGS, TEMPLATE, LONGER = blocks("slurm.md", "python")
START_S = 120.0
GONE_S = 30.0
"""
Seconds within which ranks must be gone. A rank counts its controller as gone after 8 s of silence.
"""

pytestmark = [pytest.mark.timeout(240), needs_slurm]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """
    Yield the folder of a Slurm, with the settings of docs/slurm.md.
    """
    with running_slurm() as folder, pytest.MonkeyPatch.context() as patch:
        configure(patch, tmp_path_factory.mktemp("home"), SETTINGS)
        yield folder
        stop_ranks()


def start_by(text, **options):
    """
    Start ranks by a code block of a page, with a time limit for a busy machine, and return them.
    """

    def start_ranks(n, **asked):
        return sets_of_ranks.start_ranks(n, **{"timeout_s": START_S, **asked, **options})

    names = {"start_ranks": start_ranks}
    exec(text, names)
    return names["ranks"]


@pytest.fixture(scope="module")
def started(cluster):
    """
    Return ranks, two on each node.
    """
    return start_by(START)


@pytest.fixture
def ranks(started):
    """
    Return the module's ranks, or new ones if an earlier test has ended them.
    """
    found = started if started.alive else start_by(START)
    prepare(found)
    return found


def test_ranks_are_on_both_nodes_and_count_by_node(ranks, cluster):
    """
    Ranks run on both nodes, in one job and one group. The table names their nodes, and LOCAL_RANK
    counts them on each node.
    """
    assert [len(engines_on(cluster, node)) for node in ("n1", "n2")] == [2, 2]
    assert len(queue()) == 1
    hosts = ranks.engines.hosts
    table = repr(ranks.status())
    for rank in range(4):
        assert re.search(rf"^{rank} +idle +cpu +\d+ +{hosts[rank]}$", table, re.MULTILINE)
    run_cell(ranks, "local = [os.environ['LOCAL_' + name] for name in ('RANK', 'WORLD_SIZE')]")
    by_node = {"n1": [], "n2": []}
    for rank, (local_rank, local_world_size) in enumerate(ranks.view["local"]):
        assert local_world_size == "2"
        by_node[hosts[rank]].append(int(local_rank))
    assert by_node == {"n1": [0, 1], "n2": [0, 1]}
    assert_in_order(ranks, range(4))


def test_ports_are_those_that_a_firewall_is_told(ranks):
    """
    The controller's ports are in the range that docs/hosts.md names for a firewall.
    """
    (command,) = blocks("hosts.md", "console")
    said = subprocess.run(command.removeprefix("$ ").split(), capture_output=True, check=True)
    lowest, highest = map(int, said.stdout.split())
    assert all(lowest <= port <= highest for port in ranks.control.controller_ports)


def test_a_rank_that_raises_is_named_and_the_others_are_freed(ranks):
    """
    A rank that raises is named, and the ranks that wait for it in an all-reduce are released.
    """
    source = "if mine == 2: raise ValueError('two')\ndist.all_reduce(one)"
    said = failing(ranks, source, RankRaised, "rank 2 raised ValueError: two")
    assert "ranks 0, 1 and 3 were released" in said
    assert_in_order(ranks, range(4))


def test_a_deadlock_is_ended_and_told_with_its_nodes(ranks):
    """
    A deadlock is ended, and its message names the node of each rank that waits.
    """
    source = "if mine != 1: dist.all_reduce(one)"
    said = failing(ranks, source, RankRaised, "Deadlock: rank 1 finished")
    assert re.search(f"^3 on {ranks.engines.hosts[3]} .*all_reduce", said, re.MULTILINE)
    assert_in_order(ranks, range(4))


def test_stop_frees_ranks_on_every_node(ranks):
    """
    Stop releases ranks on all nodes, though the kernel cannot signal them itself.
    """
    stop = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    stop.start()
    source = "time.sleep(60 if mine else 0)\ndist.all_reduce(one)"
    failing(ranks, source, CellStopped, "rank 0 waits for them in all_reduce")
    stop.join()
    assert_in_order(ranks, range(4))


def test_a_rank_that_is_killed_gets_a_new_process_on_its_node(ranks, cluster):
    """
    A killed rank is replaced on its node in the same job, without a wait in the queue, even if no
    rank of the job's first is left.
    """
    hosts = dict(ranks.engines.hosts)
    source = "if mine == 3: os.kill(os.getpid(), signal.SIGKILL)\ndist.all_reduce(one)"
    said = failing(ranks, source, RankDied, "rank 3 on n. died")
    assert "A new rank 3 is in place; its variables are gone." in said
    assert_in_order(ranks, range(3))
    run_cell(ranks, "mine = dist.get_rank()")
    source = "if mine < 3: os.kill(os.getpid(), signal.SIGKILL)\ndist.all_reduce(one)"
    failing(ranks, source, RankDied, "rank 0 on n. died")
    assert_in_order(ranks, [3])
    assert ranks.engines.hosts == hosts
    assert len(queue()) == 1
    run_cell(ranks, "local = os.environ['LOCAL_RANK'], os.environ['RANK']")
    assert sorted(local for local, _ in ranks.view["local"]) == ["0", "0", "1", "1"]
    assert [rank for _, rank in ranks.view["local"]] == ["0", "1", "2", "3"]


def test_all_ranks_of_a_node_that_are_killed_come_back(ranks, cluster):
    """
    If all ranks of a node are killed, they are replaced, and the ranks on the other node keep their
    variables.
    """
    node = ranks.engines.hosts[3]
    lost = [rank for rank, host in ranks.engines.hosts.items() if host == node]
    kept = [rank for rank in range(4) if rank not in lost]
    killing = threading.Timer(1.0, kill_engines, (cluster, node))
    killing.start()
    source = "time.sleep(2 if mine % 2 else 0)\ndist.all_reduce(one)"
    said = failing(ranks, source, RankDied, f"rank {lost[0]} on n. died")
    killing.join()
    assert f"New ranks {lost[0]} and {lost[1]} are in place" in said
    assert_in_order(ranks, kept)


def kill_engines(cluster, node):
    """
    Kill all ranks on a node.
    """
    for process in engines_on(cluster, node):
        process.kill()


@pytest.mark.parametrize("is_busy", [True, False], ids=["in_a_cell", "between_two"])
def test_scancel_ends_the_ranks_and_is_named(ranks, cluster, is_busy):
    """
    After scancel the cell fails with the job's state, and no other job is started: the user who
    cancelled it may have had a reason.
    """
    (job,) = [line.split()[0] for line in queue()]
    if is_busy:
        cancelling = threading.Timer(1.0, os.system, (f"scancel {job}",))
        cancelling.start()
        said = failing(ranks, "time.sleep(60)", RanksGone, "CANCELLED")
        cancelling.join()
    else:
        os.system(f"scancel {job}")
        wait_until(lambda: ranks.dead, GONE_S, "news of the deaths")
        said = failing(ranks, "pass", RanksGone, "CANCELLED")
    assert f"Slurm says that their job {job} is CANCELLED" in said
    assert "Run start_ranks() again" in said
    assert not ranks.alive
    wait_until(lambda: queue() == [], GONE_S, "the queue to be empty")
    for node in ("n1", "n2"):
        assert engines_on(cluster, node) == []


@pytest.mark.parametrize(
    ("settings", "state"),
    [(SETTINGS, "NODE_FAIL"), (f"c.SlurmLauncher.queue = 'debug'\n{TEMPLATE}", "PENDING")],
    ids=["as_usual", "begun_anew"],
)
def test_a_node_that_breaks_ends_the_ranks_and_is_named(
    cluster, tmp_path, monkeypatch, settings, state
):
    """
    If a node fails, the cell fails with the job's state, and the job is gone, even if its script
    lets Slurm requeue it: no kernel would wait for the new ranks.
    """
    stop_ranks()
    configure(monkeypatch, tmp_path, settings)
    ranks = start_by(START)
    prepare(ranks)
    node = f"scontrol update nodename={ranks.engines.hosts[3]} state="
    breaking = threading.Timer(1.0, os.system, (f"{node}down reason=test",))
    breaking.start()
    try:
        failing(ranks, "time.sleep(60)", RanksGone, f"Slurm says that their job .* is {state}")
        assert not ranks.alive
    finally:
        breaking.join()
        os.system(f"{node}resume")
    wait_until(lambda: queue() == [], GONE_S, "the queue to be empty")
    for name in ("n1", "n2"):
        wait_until(lambda n=name: not engines_on(cluster, n), GONE_S, f"the end of ranks on {name}")


def test_a_time_limit_ends_the_ranks_and_is_named(cluster, tmp_path, monkeypatch):
    """
    A job that reaches its time limit ends its ranks, and the cell names the limit. The limit is a
    minute, the shortest that Slurm knows.
    """
    stop_ranks()
    assert "1:00:00" in SETTINGS
    configure(monkeypatch, tmp_path, SETTINGS.replace("1:00:00", "0:01:00"))
    ranks = start_by(START)
    prepare(ranks)
    failing(ranks, "time.sleep(600)", RanksGone, "TIMEOUT", within_s=150)
    wait_until(lambda: queue() == [], GONE_S, "the queue to be empty")


def test_nothing_outlives_a_kernel_that_is_killed(cluster):
    """
    If the kernel is killed during a cell, the supervisor cancels the job.
    """
    stop_ranks()
    mark = new_mark()
    with running_kernel(**mark) as kernel:
        kernel.run("from ddp_lessons import start_ranks")
        assert kernel.run(START, timeout_s=START_S).status == "ok"
        kernel.client.execute("%%px\nimport time\ntime.sleep(600)")
        (job,) = [line.split()[0] for line in queue()]
        os.kill(kernel.pid, signal.SIGKILL)
        wait_until(lambda: queue() == [], GONE_S, "the queue to be empty")
        wait_until_gone(mark, GONE_S)
    assert queue(f"--jobs={job}", "--states=all")[0].split()[1] == "CANCELLED"  # by the supervisor


def test_ranks_end_by_themselves_if_kernel_and_warden_are_killed(cluster):
    """
    If kernel and supervisor are both killed, no process cancels the job: the ranks end by
    themselves once their controller is silent.
    """
    stop_ranks()
    mark = new_mark()
    with running_kernel(**mark) as kernel:
        kernel.run("from ddp_lessons import start_ranks")
        assert kernel.run(START, timeout_s=START_S).status == "ok"
        supervisor = kernel.value("ranks.supervisor.supervisor_pid")
        kernel.client.execute("%%px\nimport time\ntime.sleep(600)")
        os.kill(supervisor, signal.SIGKILL)
        os.kill(kernel.pid, signal.SIGKILL)
        wait_until_gone(mark, GONE_S + 10)  # the job's script waits for further ranks first
        wait_until(lambda: queue() == [], GONE_S, "the queue to be empty")


def refusal(patch, home, settings, timeout_s=START_S):
    """
    Start ranks, assert that the start fails and leaves no job, and return its message.

    Args:
        patch: The MonkeyPatch.
        home: The home for ipyparallel's configuration.
        settings: The configuration's text.
        timeout_s: The time limit of the start.
    """
    stop_ranks()
    configure(patch, home, settings)
    with pytest.raises(StartFailed) as caught:
        start_by(START, timeout_s=timeout_s)
    wait_until(lambda: queue() == [], GONE_S, "the queue to be empty")
    return str(caught.value)


def test_what_slurm_refuses_is_told_in_its_own_words(cluster, tmp_path, monkeypatch):
    """
    If sbatch refuses a job, the message quotes it, because only Slurm knows what is wrong with a
    partition, an account or a number of nodes.
    """
    said = refusal(monkeypatch, tmp_path, "c.SlurmLauncher.queue = 'night'")
    assert "these words of sbatch: sbatch: error: " in said
    assert "Invalid partition name specified" in said
    assert "c.SlurmLauncher in ipcluster_config.py has queue" in said


def test_a_rank_that_ends_before_it_comes_up_is_named_at_once(cluster, tmp_path, monkeypatch):
    """
    A rank that ends before it has registered is named at once: the other ranks keep the job
    running, so the start would wait until its time limit.
    """
    dies = "sh -c '[ $SLURM_PROCID = 2 ] && exit 7; exec \"$@\"' sh"
    template = TEMPLATE.replace("\nsrun", f"\nsrun {dies}")
    began = time.monotonic()
    settings = f"c.SlurmLauncher.queue = 'debug'\n{template}"
    said = refusal(monkeypatch, tmp_path, settings, timeout_s=600)
    assert time.monotonic() - began < START_S
    assert "rank 2 did not start" in said
    assert re.search(r"slurm: srun: error: n\d: task 2: Exited with exit code 7", said)


@pytest.fixture
def full_cluster(cluster, tmp_path, monkeypatch):
    """
    Let another job take both nodes during a test.
    """
    stop_ranks()
    configure(monkeypatch, tmp_path, SETTINGS)
    os.system("sbatch --quiet --output=/dev/null --exclusive --nodes=2 --wrap 'sleep 600'")
    yield
    (job,) = [line.split()[0] for line in queue()]
    os.system(f"scancel {job}")
    wait_until(lambda: queue() == [], GONE_S, "the queue to be empty")


def test_a_job_that_waits_is_told_with_its_reason(full_cluster, capsys):
    """
    While a job waits in the queue, the start prints its state and reason, because only the learner
    can decide how long to wait.
    """
    with pytest.raises(StartFailed) as caught:
        start_by(START, timeout_s=10)
    job = r"job \d+ is PENDING \(\w+\)"
    assert re.search(rf"Slurm's {job}\. Stop takes it out of the queue\.", capsys.readouterr().out)
    assert re.search(rf"slurm: {job}\n", str(caught.value))
    assert LONGER.strip().partition("timeout_s=")[2].rstrip(")") in str(caught.value)


def test_stop_takes_a_job_that_waits_out_of_the_queue(full_cluster):
    """
    Stop cancels a job that waits in the queue: it would otherwise start later, without a kernel.
    """

    def stop_once_it_waits():
        wait_until(lambda: any(" PENDING ipengine" in line for line in queue()), 60, "the job")
        os.kill(os.getpid(), signal.SIGINT)

    stopping = threading.Thread(target=stop_once_it_waits)
    stopping.start()
    with pytest.raises(KeyboardInterrupt):
        start_by(START)
    stopping.join()
    assert [line for line in queue() if "ipengine" in line] == []


def test_a_template_of_the_learners_works(cluster, tmp_path, monkeypatch):
    """
    A learner's own batch template works, faults included: sites must load modules or enter
    containers.
    """
    stop_ranks()
    configure(monkeypatch, tmp_path, f"c.SlurmLauncher.queue = 'debug'\n{TEMPLATE}")
    ranks = start_by(LONGER)
    (line,) = queue()
    assert line.endswith(" RUNNING my-ranks")
    prepare(ranks)
    source = "if mine == 1: os.kill(os.getpid(), signal.SIGKILL)\ndist.all_reduce(one)"
    failing(ranks, source, RankDied, "rank 1 on n. died")
    assert_in_order(ranks, [0, 2, 3])


@pytest.mark.parametrize("what", ["torch", "python"])
def test_another_version_on_the_nodes_is_named(cluster, tmp_path, monkeypatch, what):
    """
    Another version of torch or Python on the nodes is refused: its ranks might send what the kernel
    misunderstands.
    """
    other = tmp_path / "other"
    if what == "torch":
        (other / "torch-0.1.dist-info").mkdir(parents=True)
        (other / "torch-0.1.dist-info" / "METADATA").write_text("Name: torch\nVersion: 0.1\n")
    else:
        other.mkdir()
        lie = "import platform\nplatform.python_version_tuple = lambda: ('2', '7', '18')\n"
        (other / "sitecustomize.py").write_text(lie)
    line = f"export PYTHONPATH={other}:$PYTHONPATH\nsrun"
    template = TEMPLATE.replace("\nsrun", f"\n{line}")
    said = refusal(monkeypatch, tmp_path, f"c.SlurmLauncher.queue = 'debug'\n{template}")
    version = "0.1" if what == "torch" else "2.7"
    assert re.search(rf"rank \d on n[12] has {what} {version}: expected [\d.+a-z]+, as here", said)
    assert "Install the same on all hosts." in said


def test_ranks_that_are_stopped_at_once_leave_nothing(cluster):
    """
    Ranks that are stopped during a cell leave no job and no process, even those that block in C++.
    """
    stop_ranks()
    ranks = start_by(START)
    prepare(ranks)
    ranks.view.execute("dist.all_reduce(one) if mine else time.sleep(600)", block=False)
    stop_ranks()
    wait_until(lambda: queue() == [], GONE_S, "the queue to be empty")
    wait_until(lambda: not engines_on(cluster, "n1"), GONE_S, "the end of ranks on n1")
    wait_until(lambda: not engines_on(cluster, "n2"), GONE_S, "the end of ranks on n2")
