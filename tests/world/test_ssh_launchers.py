"""
Engines on other hosts are started through one SSH login each. Here the hosts are this machine, and
ssh is a script.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest
from ipyparallel.cluster.launcher import LauncherError
from waiting import wait_until

from ddp_lessons.ranks.kernel.launchers.ssh_launchers import (
    SSHEngineLauncher,
    SSHEngineSetLauncher,
)
from ddp_lessons.ranks.messages import host_orders, json_messages
from ddp_lessons.ranks.messages.host_orders import (
    AskHost,
    HostAnswers,
    KeepProcesses,
    LogTail,
    ProcessEnded,
    SendLog,
    SignalProcess,
    StartProcess,
)
from ddp_lessons.ranks.supervisor.child_main import RANK_OPTIONS
from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.processes import can_fork

SSH = """\
#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift 2; done  # each of its options has a value
host=$1
shift
echo "$host" >>LOGINS
[ "$host" = locked ] && { echo "Permission denied (publickey)." >&2; exit 255; }
[ "$host" = slow ] && exec sleep 60
echo "Welcome to $host"
exec sh -c "$*"
"""
SLEEP = [
    sys.executable, "-c",
    "import os, time; print('up as', os.environ['RANK'], flush=True); time.sleep(60)",
]  # fmt: skip


@pytest.fixture
def engine_set(tmp_path, monkeypatch):
    """
    Return a function that makes an engine set from hosts and a command; None stands for the ranks'
    command.
    """
    ssh, logins = tmp_path / "ssh", tmp_path / "logins"
    ssh.write_text(SSH.replace("LOGINS", str(logins)))
    ssh.chmod(0o700)
    logins.touch()

    def make(engines, command=SLEEP):
        if command is not None:
            monkeypatch.setattr(SSHEngineLauncher, "program", command)
        made = SSHEngineSetLauncher(
            profile_dir=str(tmp_path / "profile"),
            cluster_id="test",
            engines=engines,
            ssh_cmd=[str(ssh)],
        )
        made.logins = lambda: logins.read_text().split()
        return made

    return make


def started(engine_set, n, *checks):
    """
    Start engines, call each check with their launchers, and stop them.
    """

    async def play():
        await engine_set.start(n)
        launchers = dict(engine_set.launchers)
        for check in checks:
            check(launchers)
        await engine_set.stop()

    asyncio.run(play())


def runs(launcher):
    """
    Return whether an engine's process exists.
    """
    return psutil.pid_exists(launcher.pid)


def test_all_engines_of_a_host_come_through_one_login(engine_set):
    """
    All engines of a host use one login, because a login takes a second or more, and ipyparallel
    makes eight for an engine.
    """
    engines = engine_set({"node1": 2, "node2": {"n": 3, "user": "ada"}, "eve@node3:2222": 1})

    def check(launchers):
        assert all(map(runs, launchers.values()))
        assert len({one.pid for one in launchers.values()}) == len(launchers) == 6
        assert not any(one.has_ended for one in launchers.values())
        for number, launcher in enumerate(launchers.values()):
            words = f"up as {number}\n"
            wait_until(lambda one=launcher, said=words: one.get_output() == said, 10, words)
        check.launchers = launchers.values()

    started(engines, 6, check)
    assert sorted(engines.logins()) == ["ada@node2", "eve@node3", "node1"]
    assert not any(map(runs, check.launchers))
    assert not any(one.running for one in check.launchers)


def test_a_host_has_a_python_of_its_own(engine_set, tmp_path):
    """
    A host may have its own Python. Its host agent and its ranks use that one, and other hosts the
    Python that runs here.
    """
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/used\nexec {sys.executable} "$@"\n')
    python.chmod(0o700)
    engines = engine_set({"node1": 1, "node2": {"n": 1, "remote_python": str(python)}}, None)

    def check(launchers):
        assert launchers["node1/0"].program == [sys.executable, *RANK_OPTIONS]
        assert launchers["node2/0"].program == [str(python), *RANK_OPTIONS]

    started(engines, 2, check)
    agent, *ranks = (tmp_path / "used").read_text().splitlines()
    assert agent == f"-P -m ddp_lessons.ranks.supervisor.host_agent {python}"
    assert ranks == [] or not can_fork()[0]  # a forked rank is a copy of its agent


def test_an_engine_that_ends_is_known_with_its_words_and_its_code(engine_set):
    """
    The end of an engine is known at once, with its output and exit code, because the host agent
    waits for it. Its log is removed from the host.
    """
    words = [sys.executable, "-c", "raise SystemExit('no course here')"]
    engines = engine_set({"node1": 1}, words)

    def check(launchers):
        (launcher,) = launchers.values()
        wait_until(lambda: launcher.has_ended, 10, "the end of the engine")
        assert launcher.get_output().strip() == "no course here"
        log = os.path.dirname(launcher.remote_output_file)
        wait_until(lambda: os.listdir(log) == [], 10, "the end of its log")

    started(engines, 1, check)
    assert engines.stop_data["engines"]["node1/0"]["exit_code"] == 1


def test_a_host_that_refuses_the_login_is_named_and_nothing_is_left(engine_set):
    """
    A host that refuses the login is named, and engines that started on other hosts end.
    """
    engines = engine_set({"locked": 1, "node1": 1})
    with pytest.raises(LauncherError, match="locked: Permission denied"):
        started(engines, 2)
    (begun,) = [one for one in engines.begun if one.hostname == "node1"]
    wait_until(lambda: not runs(begun), 10, "the end of what had begun on node1")


def test_a_host_that_does_not_answer_the_login_is_named(engine_set, monkeypatch):
    """
    A host that accepts a connection and then says nothing is named when the login's time is over.
    """
    monkeypatch.setattr(clocks, "SSH_LOGIN_S", 0.5)
    with pytest.raises(LauncherError, match=r"slow\S* did not let us in within 0.5 s"):
        started(engine_set({"slow": 1}), 1)


def test_a_host_with_another_version_is_named(engine_set):
    """
    A host agent whose answers this kernel does not know ends the login, with what to do.
    """
    python = f"echo '{host_orders.MARK}{{}}'; sleep 60 #"
    engines = engine_set({"node1": {"n": 1, "remote_python": python}})
    with pytest.raises(LauncherError, match="node1: it has another version of the course"):
        started(engines, 1)


def test_a_command_that_is_not_there_is_named(engine_set):
    """
    The error has the host's own message.
    """
    engines = engine_set({"node1": 1}, ["/no/such/python"])
    with pytest.raises(LauncherError, match="No such file or directory: '/no/such/python'"):
        started(engines, 1)


def test_a_host_that_is_silent_is_not_waited_for(engine_set):
    """
    ssh would wait for minutes for a host that does not answer, so stopping does not wait for it.
    Ranks there end by themselves, because they get no answer from their controller.
    """
    engines = engine_set({"node1": 1, "node2": 2})

    def silence(launchers):
        agent = psutil.Process(launchers["node2/0"].pid).parent()
        agent.send_signal(signal.SIGSTOP)
        silence.agent = agent
        silence.launchers = launchers

    started(engines, 3, silence)  # would not return if it waited for node2's ranks
    assert [login.is_silent for login in engines._logins] == [False, True]
    assert not runs(silence.launchers["node1/0"])
    left = [silence.launchers[f"node2/{number}"] for number in range(2)]
    assert all(map(runs, left))
    for launcher in left:
        os.kill(launcher.pid, signal.SIGKILL)
    silence.agent.kill()


def test_what_was_kept_outlives_its_login(engine_set):
    """
    Engines outlive their login, since a link that fails for a while must not end ranks that work.
    """
    engines = engine_set({"node1": 1})

    def cut(launchers):
        (launcher,) = launchers.values()
        psutil.Process(launcher.pid).parent().kill()
        wait_until(lambda: launcher.has_ended, 10, "the end of the login")
        assert runs(launcher)
        os.kill(launcher.pid, signal.SIGKILL)

    started(engines, 1, cut)


@pytest.fixture
def agent():
    """
    Start a host agent as a login does: orders go to its input, and its output reports what became
    of them.
    """
    command = [
        sys.executable,
        "-P",
        "-m",
        "ddp_lessons.ranks.supervisor.host_agent",
        sys.executable,
    ]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        yield process
        process.kill()


def order(agent, message):
    """
    Send a HostOrder.
    """
    print(json.dumps(json_messages.message_to_json(message)), file=agent.stdin, flush=True)


def heard(agent):
    """
    Return the agent's next HostAnswer.
    """
    line = agent.stdout.readline().removeprefix(host_orders.MARK)
    return host_orders.host_answer_from_json(json.loads(line))


def test_an_agent_says_what_becomes_of_its_orders(agent, tmp_path):
    """
    The agent reports on a sequence of orders: a process starts, is asked for its output and ends;
    another cannot start; a third is kept alive after the login.
    """
    log = str(tmp_path / "logs" / "one")
    loop = "import os, time; print(os.environ.get('SET'), os.environ.get('HOME'), flush=True)\n"
    loop += "time.sleep(60)"
    words, variables = [sys.executable, "-c", loop], {"SET": 3, "HOME": ""}
    start = StartProcess("one", words, variables, log, str(tmp_path / "profile"))
    assert heard(agent) == HostAnswers()
    order(agent, start)
    pid = heard(agent).pid
    wait_until(lambda: os.path.getsize(log) > 0, 10, "its words")
    order(agent, SendLog("one"))
    assert heard(agent) == LogTail("one", "3 None\n")
    order(agent, AskHost())
    assert heard(agent) == HostAnswers()
    order(agent, SignalProcess("one", 15))
    assert heard(agent) == ProcessEnded("one", -15, "3 None\n")
    assert not psutil.pid_exists(pid)
    order(agent, SignalProcess("one", 15))  # it has ended, so this has no effect
    order(agent, SendLog("one"))
    order(agent, replace(start, key="two", words=["/no/such/program"]))
    fault = heard(agent)
    assert fault.code is None
    assert "/no/such/program" in fault.text
    order(agent, replace(start, key="kept"))
    order(agent, KeepProcesses())
    kept = heard(agent).pid
    agent.stdin.close()
    assert agent.wait(10) == 0
    assert psutil.pid_exists(kept)
    os.kill(kept, signal.SIGKILL)


@pytest.mark.skipif(not can_fork()[0], reason="it starts each rank as a fresh interpreter here")
def test_an_agent_imports_torch_once_for_all_ranks_of_its_host(agent, tmp_path):
    """
    The host agent imports torch once and forks all ranks of its host. Each rank behaves as its
    command line says, with its own session and log.
    """
    variables = {"OMP_NUM_THREADS": 1, "RANK": 2}
    assert heard(agent) == HostAnswers()
    for key in ("one", "two"):
        (profile := tmp_path / key).mkdir()
        arguments = [f"--profile-dir={profile}", "--IPEngine.wait_for_url_file=600"]
        words = [sys.executable, *RANK_OPTIONS, *arguments]
        log = str(tmp_path / f"{key}.log")
        order(agent, StartProcess(key, words, variables, log, str(tmp_path)))
        rank = psutil.Process(heard(agent).pid)
        assert rank.cmdline() == psutil.Process(agent.pid).cmdline()  # a copy of the agent
        wait_until((profile / "security").is_dir, 20, "what an engine makes in its profile")
        assert (os.getsid(rank.pid), rank.name()) == (rank.pid, "rank 2")
    for key in ("one", "two"):
        order(agent, SignalProcess(key, int(signal.SIGKILL)))
        end = heard(agent)
        assert (end.key, end.code) == (key, -signal.SIGKILL)
