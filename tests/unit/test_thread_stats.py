"""
Thread stats: what the system says of a rank's threads, whether they sleep, work, wait for a core or
are gone.
"""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
from fake_ranks import ASLEEP
from waiting import HANGS_AFTER_S, wait_until

from ddp_lessons.ranks.system.sleep_tracker import SleepTracker
from ddp_lessons.ranks.system.thread_stats import (
    main_waited_s,
    thread_stats_of,
    waited_for_a_core_s,
    wants_a_core,
)

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@contextmanager
def python(source):
    """
    Give the process id of a Python that runs `source`, once it has started.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", f"print('up', flush=True)\n{source}"], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout.readline() == b"up\n"
        yield process.pid
    finally:
        process.kill()
        process.communicate()


class Told:
    """
    A clock, and thread stats that a test sets.
    """

    def __init__(self, stats=ASLEEP):
        self.now, self.stats = 50.0, stats
        self.rest = SleepTracker(7, clock=lambda: self.now, stats=lambda pid: self.stats)

    def after(self, seconds, **changes):
        """
        Let time pass, change the thread stats, and take a reading.
        """
        self.now += seconds
        self.stats = replace(self.stats, **changes)
        self.rest.look()
        return self.rest


def test_pulse_of_a_process_that_sleeps_and_of_one_that_computes():
    """
    A process that sleeps and one that computes are distinguished.
    """
    with (
        python("import time; time.sleep(600)") as sleeping,
        python("while True: pass") as computing,
    ):
        wait_until(lambda: thread_stats_of(sleeping).main_sleeps, HANGS_AFTER_S, "sleep")
        before = thread_stats_of(sleeping), thread_stats_of(computing)
        wait_until(
            lambda: thread_stats_of(computing).main_cpu_s > before[1].main_cpu_s,
            HANGS_AFTER_S,
            "CPU time",
        )
        after = thread_stats_of(sleeping), thread_stats_of(computing)
        assert after[0].main_turns == before[0].main_turns
        assert not wants_a_core(sleeping)
        assert not after[1].main_sleeps
        assert wants_a_core(computing)


def test_pulse_of_a_process_that_is_stopped_is_no_sleep():
    """
    A stopped process is halted and does not count as asleep. It wants no core either, so load is
    not the cause.
    """
    with python("import time; time.sleep(600)") as pid:
        wait_until(lambda: thread_stats_of(pid).main_sleeps, HANGS_AFTER_S, "sleep")
        assert thread_stats_of(pid).main_halt == ""
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: thread_stats_of(pid).main_halt, HANGS_AFTER_S, "the stop")
        assert thread_stats_of(pid).main_halt == "stopped by a signal"
        assert not thread_stats_of(pid).main_sleeps
        assert not wants_a_core(pid)
        rest = SleepTracker(pid)
        assert rest.is_stopped
        assert rest.halt == ""  # one reading does not show for how long
        rest.look()
        assert rest.halt == "stopped by a signal"
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: thread_stats_of(pid).main_sleeps, HANGS_AFTER_S, "sleep")
        rest.look()
        assert (rest.halt, rest.halted_s, rest.is_stopped) == ("", 0.0, False)


def test_pulse_sees_the_other_threads():
    """
    Threads besides the main one are seen, because a thread that computes may wake the main thread
    at any moment.
    """
    work = "import threading, time\ndef work():\n    while True: pass\n"
    work += "threading.Thread(target=work, daemon=True).start()\ntime.sleep(600)"
    with python(work) as pid:
        wait_until(
            lambda: not thread_stats_of(pid).others_sleep, HANGS_AFTER_S, "the thread at work"
        )
        assert wants_a_core(pid)


def test_two_on_one_core_wait_for_it():
    """
    Two processes on one core wait for it, and the main thread's wait is part of the wait of all
    threads.
    """
    core = min(os.sched_getaffinity(0))
    busy = f"import os\nos.sched_setaffinity(0, [{core}])\nwhile True:\n    pass"
    with python(busy) as one, python(busy) as other:
        for pid in (one, other):
            wait_until(
                lambda pid=pid: main_waited_s(pid) > 0.1, HANGS_AFTER_S, "a wait for the core"
            )
            before = main_waited_s(pid)
            assert before <= waited_for_a_core_s(pid)
    assert main_waited_s(one) == waited_for_a_core_s(one) == 0.0


def test_pulse_of_nobody_is_none():
    """
    A process that has ended has no thread stats, because a rank may be gone before the reading.
    """
    with python("import time; time.sleep(600)") as pid:
        pass
    assert thread_stats_of(pid) is None
    assert not wants_a_core(pid)
    rest = SleepTracker(pid)
    rest.look()
    assert not rest.is_known


def test_pulse_knows_the_engines_threads_by_name():
    """
    The engine's own threads are recognised by name and left out: heartbeats and the agent's answers
    are not the learner's work.
    """
    naming = (
        "import threading, time\n"
        "from ddp_lessons.ranks.system.thread_stats import name_engine_threads\n"
        "def work():\n    while True: pass\n"
        "def watch():\n    while True: time.sleep(0.01)\n"
        "agent = threading.Thread(target=watch, daemon=True)\nagent.start()\n"
        "threading.Thread(target=work, daemon=True).start()\nname_engine_threads(agent)\n"
        "print('named', flush=True)\ntime.sleep(600)"
    )
    with python(naming) as pid:
        wait_until(
            lambda: thread_stats_of(pid).others_sleep,
            HANGS_AFTER_S,
            "the engine's threads to be left out",
        )
        turns = thread_stats_of(pid).agent_turns
        wait_until(
            lambda: thread_stats_of(pid).agent_turns > turns, HANGS_AFTER_S, "turns of the agent"
        )


def test_rest_counts_only_sleep_without_a_turn():
    """
    Rest counts only sleep without a turn: two readings of a sleeping thread prove nothing if it had
    a turn between them.
    """
    told = Told()
    assert told.after(0.2).rest_s == pytest.approx(0.2)
    assert told.after(0.2).rest_s == pytest.approx(0.4)
    assert told.after(0.2, main_turns=11).rest_s == 0.0
    assert told.after(0.2).rest_s == pytest.approx(0.2)


def test_rest_of_one_that_waits_for_a_core_is_none():
    """
    A rank that waits for a core does not rest, although it has no turns.
    """
    told = Told()
    for _ in range(20):
        assert told.after(0.2, main_sleeps=False).rest_s == 0.0


def test_rest_is_sure_once_gloo_has_looked():
    """
    Rest is certain only after Gloo's thread had a turn: an arrived message may still wake the rank
    before that.
    """
    told = Told()
    assert not told.after(0.2).nothing_stirs
    assert not told.after(0.2, gloo_turns=101).nothing_stirs
    assert told.after(0.2, gloo_turns=102).nothing_stirs
    assert not told.after(0.2, others_sleep=False).nothing_stirs


def test_rest_without_gloo_needs_only_the_others():
    """
    Without a Gloo thread, as in no group or with NCCL, only the other threads must sleep.
    """
    assert Told(replace(ASLEEP, gloo_turns=None)).after(0.2).nothing_stirs


def test_name_engine_threads_spares_the_main_thread():
    """
    The main thread keeps its name, which is that of the learner's program.
    """
    naming = (
        "import os, threading, time\nfrom pathlib import Path\n"
        "from ddp_lessons.ranks.system.thread_stats import name_engine_threads\n"
        "name = lambda task: Path(f'/proc/self/task/{task}/comm').read_text().strip()\n"
        "agent = threading.Thread(target=time.sleep, args=(600,), daemon=True)\nagent.start()\n"
        "before = name(os.getpid())\nname_engine_threads(agent)\n"
        "print(name(os.getpid()) == before, name(agent.native_id))"
    )
    said = subprocess.run([sys.executable, "-c", naming], capture_output=True, text=True)
    assert said.stdout.split() == ["True", "ddp-agent"], said


def test_rest_counts_how_long_a_thread_waits_for_a_disk():
    """
    The seconds for which a thread waits for a disk are counted. A turn in between means that the
    disk answers.
    """
    told = Told()
    halted = {"main_sleeps": False, "main_halt": "waiting for a disk"}
    assert told.after(0.2, **halted).halt == ""
    assert told.after(0.2).halted_s == pytest.approx(0.2)
    assert told.rest.halt == "waiting for a disk"
    assert told.after(0.2, main_turns=11).halt == ""
    assert told.after(0.4).halted_s == pytest.approx(0.4)
    assert told.rest.rest_s == 0.0
    assert not told.rest.is_stopped
