"""
Thread stats: which threads of a rank have had turns on a core, sleep, or wait for a core.

Wall-clock seconds prove nothing on a crowded machine, where a silent rank may only wait for a core.
So a rank is judged by the turns that it has had. In a *turn* a thread gets a core. If a thread
sleeps at two looks and its count of turns is the same, it has slept all the time in between.

    main    the main thread, which runs the learner's code
    agent   the engine's control thread, which answers the kernel and releases the main thread
    gloo    Gloo's own loops, which wake up a hundred times a second even without work
    others  threads of the learner and of torch, without the engine's

Source: proc(5), stat, status and schedstat of each task.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threading import Thread

GUARD_THREAD = "ddp-agent"
ENGINE_THREAD = "ddp-engine"
_ENGINE_THREADS = (ENGINE_THREAD, GUARD_THREAD, "ZMQbg/")
_GLOO_LOOP = "gloo_tcp_loop"
STOPPED = "stopped by a signal"
HALTS = {"D": "waiting for a disk", "T": STOPPED, "t": "stopped by a debugger"}
"""
States of a halted thread, which neither runs nor sleeps by its own choice, with words for each.
"""
_WANTS_A_CORE = ("R", "D")
"""
States in which a thread runs or waits for a core (R), or waits for a disk (D). A thread that waits
for a disk goes on as soon as the disk answers.
"""
_AWAKE = ("R", *HALTS)


def name_engine_threads(agent_thread: Thread) -> None:
    """
    Give this process's threads names that `thread_stats_of` knows, before any learner's code runs.

    A new thread inherits the name of the thread that starts it. So threads that the engine starts
    later have such a name, too.

    Args:
        agent_thread: The engine's control thread.
    """
    try:
        tasks = os.listdir("/proc/self/task")
    except OSError:
        return  # only Linux has these names
    for task in tasks:
        path = Path(f"/proc/self/task/{task}/comm")
        # Skip the main thread. In Python 3.11 a forked main thread has its parent's native_id.
        if int(task) == os.getpid() or path.read_text().startswith("ZMQbg/"):
            continue
        is_agent = int(task) == agent_thread.native_id
        path.write_text(GUARD_THREAD if is_agent else ENGINE_THREAD)


@dataclass(frozen=True)
class ThreadStats:
    """
    The threads of one rank at one moment.

    Args:
        main_sleeps: Whether the main thread sleeps: it has no core, waits for none, and is not
            halted.
        main_halt: Words for what halts the main thread; "" if nothing does.
        main_turns: Number of turns that the main thread has had since it began.
        main_pushed_out: Number of these turns that the system cut short for another thread.
        main_cpu_s: Seconds of CPU time that the main thread has used.
        agent_turns: Number of the agent thread's voluntary turns, which it ended by sleeping or
            waiting.
        gloo_turns: Fewest turns of any Gloo loop, or None if there is no loop.
        others_sleep: Whether all other threads of the learner and of torch sleep.
        engine_sleeps: Whether the engine's own threads sleep, apart from the agent's.
    """

    main_sleeps: bool
    main_turns: int
    main_pushed_out: int
    main_cpu_s: float
    agent_turns: int
    gloo_turns: int | None
    others_sleep: bool
    engine_sleeps: bool
    main_halt: str = ""


def _task(folder):
    """
    Return a thread's name and state.
    """
    with open(f"{folder}/stat") as f:
        head, _, tail = f.read().rpartition(")")
    return head.partition("(")[2], tail.split(maxsplit=1)[0]


def _turns_and_cpu(folder):
    with open(f"{folder}/schedstat") as f:
        ran_ns, _, turns = f.read().split()
    return int(turns), int(ran_ns) / 1e9


def _pushed_out(folder):
    with open(f"{folder}/status") as f:
        for line in f:
            if line.startswith("nonvoluntary_ctxt_switches"):
                return int(line.split()[1])
    return 0


def thread_stats_of(pid: int) -> ThreadStats | None:
    """
    Return the ThreadStats of a rank's process; None if it is gone or the system shows none.
    """
    root = f"/proc/{pid}/task"
    main = f"{root}/{pid}"
    agent_turns, gloo_turns, others_sleep, engine_sleeps = 0, [], True, True
    try:
        _, state = _task(main)
        turns, cpu_s = _turns_and_cpu(main)
        preemptions = _pushed_out(main)
        tasks = os.listdir(root)
    except OSError:
        return None
    for task in tasks:
        if task == str(pid):
            continue
        folder = f"{root}/{task}"
        try:
            name, other_state = _task(folder)
            sleeps = other_state not in _AWAKE
            if name == GUARD_THREAD:
                agent_turns = _turns_and_cpu(folder)[0] - _pushed_out(folder)
            elif name == _GLOO_LOOP:
                gloo_turns.append(_turns_and_cpu(folder)[0])
            elif name.startswith(_ENGINE_THREADS):
                engine_sleeps = engine_sleeps and sleeps
            else:
                others_sleep = others_sleep and sleeps
        except OSError:
            continue  # it ended while we looked
    return ThreadStats(
        main_sleeps=state not in _AWAKE,
        main_turns=turns,
        main_pushed_out=preemptions,
        main_cpu_s=cpu_s,
        agent_turns=agent_turns,
        gloo_turns=min(gloo_turns, default=None),
        others_sleep=others_sleep,
        engine_sleeps=engine_sleeps,
        main_halt=HALTS.get(state, ""),
    )


def waited_for_a_core_s(pid: int) -> float:
    """
    Return the sum of the seconds for which a process's threads were ready to run without a core.

    Return 0.0 if the process is gone or the system does not show this.
    """
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return 0.0
    return sum(_waited_s(pid, task) for task in tasks)


def main_waited_s(pid: int) -> float:
    """
    Return the seconds for which the main thread of a process was ready to run and had no core.

    Return 0.0 if the process is gone or the system does not show this.
    """
    return _waited_s(pid, pid)


def _waited_s(pid, task):
    try:
        with open(f"/proc/{pid}/task/{task}/schedstat") as f:
            return int(f.read().split()[1]) / 1e9
    except OSError:
        return 0.0  # the thread has ended, perhaps while we looked


def main_cpu_s(pid: int) -> float:
    """
    Return the seconds of CPU time that the main thread of a process has used.

    Return 0.0 if the process is gone or the system does not show this.
    """
    try:
        return _turns_and_cpu(f"/proc/{pid}/task/{pid}")[1]
    except OSError:
        return 0.0


def is_main_awake(pid: int) -> bool:
    """
    Return whether the main thread of a process does not sleep; False if the process is gone.
    """
    try:
        return _task(f"/proc/{pid}/task/{pid}")[1] in _AWAKE
    except OSError:
        return False


def wants_a_core(pid: int) -> bool:
    """
    Return whether any thread of a process runs, or waits for a core or for a disk.

    Return False if the process is gone or stopped by a signal, or the system does not show this.
    """
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    for task in tasks:
        try:
            if _task(f"/proc/{pid}/task/{task}")[1] in _WANTS_A_CORE:
                return True
        except OSError:
            continue  # it ended while we looked
    return False
