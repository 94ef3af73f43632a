"""
The runtime's clocks: each interval, limit and count of turns by which it looks, waits and gives up.

A number in `stretched(...)` is patience: when it is used up, the runtime concludes, reports or ends
something. A slow machine needs more patience, and DDP_LESSONS_CLOCK_SCALE=2 gives it twice as much.
All other numbers stay: how often the runtime looks, which costs some milliseconds and no verdict;
and what load cannot use up, such as seconds of CPU time or turns of a thread (a *turn* is one time
that a thread was given a core and gave it back by itself).

*Proven sleep* is a second in which nobody of those who were waited for wanted a core: see
`patience`. Modules read a number as `clocks.DEADLOCK_S`, and tests replace it here.
"""

import math
import os

from ddp_lessons.errors import BadInput

SCALE_VARIABLE = "DDP_LESSONS_CLOCK_SCALE"


def scale_of(environment):
    """
    Return by how much an environment stretches the runtime's patience: 1.0 if it says nothing.

    Args:
        environment: Variables by name, as `os.environ`.

    Raises:
        BadInput: The variable is no number, or below 1, which would put limits below intervals.
    """
    text = environment.get(SCALE_VARIABLE) or "1"
    try:
        scale = float(text)
    except ValueError:
        scale = math.nan
    if not 1 <= scale < math.inf:
        raise BadInput(
            f"Wrong setting: {SCALE_VARIABLE} must be a number from 1 on (got {text!r}). "
            "Unset it, or set it to 2 for twice the patience on a slow machine."
        )
    return scale


SCALE = scale_of(os.environ)
"""
Controller, supervisor and ranks inherit the variable; ranks on other hosts are told it.
"""


def stretched(limit):
    """
    Return a limit of patience times the scale. A whole number stays whole: programs take no other.
    """
    longer = limit * SCALE
    return math.ceil(longer) if isinstance(limit, int) else longer


# ---- patience: a limit in seconds of proven sleep ----

# A look at a process costs a hundred system calls. Seldomer looks would miss short bursts of work.
PATIENCE_LOOK_EVERY_S = 0.1
# The most that one look counts: the process that looks may have been starved, too, and does not
# know what happened meanwhile. It must exceed the interval, or sleep would be counted in part only.
PATIENCE_LONGEST_GAP_S = 0.25

# ---- stall monitor (kernel/lookout) ----

# A cell that is over sooner is never looked at. Larger: every fault and deadlock is told later.
STALL_LOOK_EVERY_S = 0.2
# Standstill after which ranks are asked where they are. Smaller: short pauses of a healthy cell
# cost it questions. It is below one look's interval, so the second look asks.
STALL_QUIET_S = 0.15
# Standstill after which a deadlock is concluded. Smaller: a pause between two steps may be taken
# for one. Larger: the prompt is not back within the promised 2 s, as releasing comes on top.
DEADLOCK_S = stretched(0.55)
# Standstill after which the table says who waits for whom. Smaller: slow steps fill the page.
STALL_REPORT_S = stretched(5.0)
# What the others get after a fault, to raise the same by themselves: sleep outside a call. Smaller:
# their own error is lost. Larger: the message comes late.
CHANCE_REST_S = stretched(0.5)
# The same for a rank that computes. CPU time: a starved rank does not use it up.
CHANCE_CPU_S = 0.3
# The same for a rank that polls: turns of its own choice.
CHANCE_TURNS = 50
# How long a look waits for answers. Later ones are read at the next look, so nothing is lost.
STALL_ANSWER_S = 0.05
# How long a rank counts as about to answer where the system tells nothing of its threads.
STALL_UNKNOWN_ANSWER_S = stretched(0.2)
# Proven sleep, after Stop, until the ranks that have not answered are told without their line.
STOP_ANSWER_S = stretched(1.0)
# How often a wait for answers looks at the guards' threads: dozens of system calls a rank.
STALL_GUARD_LOOK_EVERY_S = 0.1
# How often a wait polls for what wakes no thread here: an answer, or a change of the client's list.
POLL_S = 0.002
# Turns in which a guard that could answer would have answered. While it wants the interpreter, it
# asks for it every 5 ms, and Python code gives it away at its next instruction: C code holds it.
DEAF_TURNS = 40

# ---- releasing ranks (kernel/freeing) ----

# How often ranks that are not free yet are told again. Each time costs a message a rank.
FREE_EVERY_S = 0.2
# Proven sleep after everybody let go, until a rank is given up. What could still wake it is a
# thread of its own, or a child; both are looked at, so this covers a moment between two steps.
FREE_ASLEEP_S = stretched(0.35)
# CPU time of a rank that was released and computes on. Smaller: a long call into C loses its rank.
STUBBORN_CPU_S = 10.0
# Interrupts that a rank caught and ran on, one each FREE_EVERY_S at most: some 6 s.
STUBBORN_INTERRUPTS = 30
# Seconds on the wall, as nothing else is left where the system tells nothing of threads. A
# starved rank may be given up then: so they are many.
FREE_UNKNOWN_S = stretched(8.0)

# ---- telling slow from stuck (diagnosis) ----

# Most CPU time of one poll: what wakes up, looks and sleeps takes less; a step of training more.
CPU_OF_A_POLL_S = 0.0005
# Polls of a rank after which what it polls for does not come. Each is a turn: load cannot hide it.
VAIN_POLLS = 30
# How often a rank's descendants are looked up: it takes a file a thread.
CHILDREN_LOOK_EVERY_S = 1.0
# CPU time between two looks that may be rounding: /proc counts in hundredths of a second.
CPU_ROUNDING_S = 0.03
# Proven sleep until a rank that is asked by a signal counts as silent. A handler writes its file in
# milliseconds; this long, nobody looks at the others.
STACK_ANSWER_S = stretched(0.5)
STACK_POLL_S = 0.01  # of a file that another process writes
# A call with a shorter limit of its own is left to raise torch's error, and is no deadlock.
# Larger: a learner's group with such a limit hangs until then.
OWN_LIMIT_S = 60.0

# ---- a cell, and the line to the guards (kernel/cells, requests, control) ----

# How long a cell waits for news at once. News wake it: this is for Stop, and for the looks.
CELL_TICK_S = 0.05
# Proven sleep, after the last reply, until output counts as lost and is told so.
OUTPUT_S = stretched(1.0)
# Proven sleep until no death is expected any more that explains a lost connection. Smaller: a
# victim is told as a culprit. Larger: a real network error is told so much later.
NEWS_S = stretched(0.5)
# How often a wait for the client's thread to send looks whether that thread lives.
SEND_LOOK_EVERY_S = 1.0
# Proven sleep until an idle rank that does not say where it is counts as silent: without its
# answer, no deadlock is concluded.
IDLE_ANSWER_S = stretched(0.3)
# Proven sleep until a release counts as lost. Smaller: a late one cuts the group that comes next.
RELEASE_ANSWER_S = stretched(2.0)
CONTROL_POLL_S = 0.02  # how often these two look at who wants a core

# ---- groups (kernel/grouping, rank/membership, rank/release) ----

# An idle rank answers in milliseconds. One that does not is told to let go, which does no harm to
# one that was only slow: this is no verdict.
IDLE_S = 0.2
GROUP_LOOK_EVERY_S = 0.1  # how often a join is looked at; the last answer ends it at once
# Proven sleep of a rank that leaves its group or opens a store, and waits for nobody in that.
ALONE_ASLEEP_S = stretched(2.0)
# The same of ranks that join, which may have to wait for the slowest.
JOIN_ASLEEP_S = stretched(10.0)
# Turns of a rank that joins: a wait for a store has one every 10 ms, so some 30 s.
JOIN_POLLS = 3000
# Seconds on the wall where the system tells nothing of the ranks' threads.
GROUP_UNKNOWN_S = stretched(60.0)
# For the connection to a store that is open: its owner has said so.
STORE_S = stretched(60.0)
# The limit that a store is given so that a wait for it fails at its next look: not 0, no limit.
STORE_ENDS_S = 0.001

# ---- starting and replacing ranks (kernel/session, keeper, engines, launchers) ----

# The default of `start_ranks`, for each step. Proven sleep: a slow disk is waited for.
START_S = stretched(60.0)
# The controller's and the ranks' own limits, which must not be met before the kernel's.
NEVER_S = stretched(3600)
# How often a wait for the supervisor looks at it; what the supervisor says ends it at once.
SUPERVISOR_LOOK_EVERY_S = 0.1
# Until the supervisor is killed, and its ranks with it. It ends the controller politely before.
SUPERVISOR_END_S = stretched(5.0)
# The same for ipyparallel's own commands, which stop a cluster that another process has started.
CLUSTER_END_S = stretched(10)
CLUSTER_POLL_S = 0.02  # how often they look at the supervisor's process
CONNECTION_POLL_S = 0.005  # of the controller's files: at the start, each poll is on the way
# Until the thread that ipyparallel has begun has an event loop, which can be ended.
LOOP_S = stretched(5.0)
# Proven sleep of the controller until a dead rank's number counts as taken for good.
FORGET_S = stretched(5.0)
# Proven sleep of those who start until a replacement counts as failed: to fork takes milliseconds.
REPLACE_S = stretched(10.0)
# The same on another machine: to log in, to get a turn in a queue, and to import.
REPLACE_ELSEWHERE_S = stretched(60.0)

# ---- ranks that other launchers start (kernel/launched) ----

# Proven sleep until a rank that has registered and does not say where it is ends the start.
HOME_S = stretched(20.0)
# How often it is asked again: what is sent while its line is being made reaches nobody.
HOME_ASK_EVERY_S = 1.0
# ssh: for a login that shows whether a host is there. Whole seconds, as ssh takes no other.
SSH_KNOCK_S = stretched(2)
# ssh: how often each engine that does not start is looked for on its host; each look is a login.
SSH_LOOK_EVERY_S = 5.0
# Slurm: for one command, such as squeue. Slurm's own limit for a message is 10 s.
SLURM_COMMAND_S = stretched(30.0)
# Slurm: until a job that was cancelled is left to Slurm. Smaller: it may outlive its notebook.
SLURM_GONE_S = stretched(10.0)
# Slurm: until a job that waits is told of, with Slurm's reason.
SLURM_TELL_S = stretched(5.0)
# Slurm: until an srun whose job is over is killed.
SLURM_END_S = stretched(5.0)
# Slurm: for a job that is ending to say why: it is told only after that.
SLURM_CAUSE_S = stretched(15.0)
# Slurm: how often it is asked of a job that waits, and from SLURM_SELDOM_AFTER_S on: a queue has
# many who ask.
SLURM_LOOK_EVERY_S = 1.0
SLURM_LOOK_SELDOM_S = 5.0
SLURM_SELDOM_AFTER_S = 10.0
SLURM_POLL_S = 0.1  # of a job that is about to end
# Proven sleep of mpiexec and its processes, after a death, until it is not about to end them all.
MPI_END_S = stretched(3.0)
MPI_POLL_S = 0.05  # of mpiexec's process: one that ends wakes nobody here

# ---- heartbeats between controller and ranks (warden/controller, hearts, rank/engine) ----

# How often the controller asks. A rank of another launcher adds the slack to it.
HEARTBEAT_EVERY_MS = 500
HEARTBEAT_SLACK_MS = 500
# Heartbeats that such a rank misses until its controller is gone: 8 times 1 s. Smaller: a crowded
# machine loses ranks. Larger: they outlive a kernel that was killed.
RANK_MISSES = stretched(8)
# Heartbeats that a rank on another machine misses until it is dead: 7.5 s, about as long. A death
# is told at once, by a supervisor or a nanny; but a host that has vanished tells nothing.
ELSEWHERE_MISSES = stretched(15)
# The same on this machine, where a late heartbeat only means a busy rank: 10 minutes.
HERE_MISSES = stretched(1200)
# Ranks that subscribe within this time are asked together.
HEARTBEAT_TOGETHER_S = 0.002

# ---- in a rank (rank/engine, rank/interrupts) ----

# Until a rank of another launcher gives up a controller that does not answer: it may be crowded.
REGISTER_S = stretched(120.0)
# How often an interrupt that had to wait for the end of an import is tried again.
INTERRUPT_AGAIN_EVERY_S = 0.05
# How often a rank looks for its parent, where the system cannot tie a child to it.
PARENT_LOOK_EVERY_S = 1.0

# ---- supervisor (warden/warden) ----

# Until what was asked to end is killed. Ranks are killed at once; this is the controller's.
POLITE_S = stretched(1.0)
POLITE_POLL_S = 0.01  # of its children, which it collects
# For commands that end ranks elsewhere. A kernel that is there has run them itself, and nobody else
# waits.
END_COMMANDS_S = stretched(20.0)
