"""
The runtime's clocks: each interval, limit and count of turns by which it looks, waits and gives up.

A number in `stretched(...)` is patience: when it is used up, the runtime concludes, reports or ends
something. A slow machine needs more patience, and DDP_LESSONS_CLOCK_SCALE=2 gives it twice as much.
All other numbers stay: how often the runtime looks, which costs some milliseconds and no verdict;
and what load cannot use up, such as seconds of CPU time or turns of a thread (a *turn* is one time
that a thread was given a core and gave it back by itself).

*Proven sleep* counts only seconds in which no process that is waited for wanted a core: see
`time_limit`. "Smaller" and "Larger" say what is lost by such a number. Modules read a number as
`clocks.DEADLOCK_S`, and tests replace it here.
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

# How often processes are looked at: a look costs a hundred system calls. Larger: a short burst of
# work falls between two looks.
PATIENCE_LOOK_EVERY_S = 0.1
# The most that one look counts: the process that looks may have been starved, too, and does not
# know what happened meanwhile. It must exceed the interval, or sleep would be counted in part only.
PATIENCE_LONGEST_GAP_S = 0.25

# ---- stall monitor (kernel/stall_monitor) ----

# How often a running cell is looked at, so that a shorter cell never is. Larger: every fault and
# deadlock is reported later.
STALL_LOOK_EVERY_S = 0.2
# Standstill after which ranks are asked where they are. Smaller: short pauses of a healthy cell
# cost it questions. It is below one look's interval, so the second look asks.
STALL_QUIET_S = 0.15
# Standstill after which a deadlock is concluded. Smaller: a pause between two steps may be taken
# for one. Larger: the prompt is not back within the promised 2 s, as releasing comes on top.
DEADLOCK_S = stretched(0.55)
# Standstill after which a table says which rank waits for which. Smaller: slow steps print tables.
STALL_REPORT_S = stretched(5.0)
# After a fault, the other ranks are released once each had a chance to raise the same error. This
# is the chance of a rank that sleeps outside of a call. Smaller: the rank's own error is lost.
# Larger: the message comes late.
CHANCE_REST_S = stretched(0.5)
# The chance of a rank that computes, in CPU time, which a starved rank does not use up.
CHANCE_CPU_S = 0.3
# The chance of a rank that polls for something else, in turns.
CHANCE_TURNS = 50
# How long a look waits for answers. A later answer is read at the next look, so nothing is lost.
STALL_ANSWER_S = 0.05
# How long a rank counts as about to answer where the system tells nothing of its threads.
STALL_UNKNOWN_ANSWER_S = stretched(0.2)
# Proven sleep, after Stop, until the ranks that have not answered are told without their line.
STOP_ANSWER_S = stretched(1.0)
# How often a wait for answers looks at the agents' threads: dozens of system calls a rank.
STALL_GUARD_LOOK_EVERY_S = 0.1
# How often a wait polls for what wakes no thread here: an answer, or a change of the client's list.
POLL_S = 0.002
# Turns of a agent's thread in which it would have answered if it could. It asks for the interpreter
# every 5 ms, and Python code gives it away at the next instruction: so C code holds it.
DEAF_TURNS = 40

# ---- releasing ranks (kernel/freeing) ----

# How often ranks that are not free yet are told again. It costs one message a rank.
FREE_EVERY_S = 0.2
# Proven sleep after all ranks let go, until a rank is given up. Only a thread of its own or a child
# could still wake it. Both are looked at, so this covers the moment between two of their steps.
FREE_ASLEEP_S = stretched(0.35)
# Seconds after which a rank is given up that stays stopped though it was sent SIGCONT, or that has
# waited for a disk without one turn. Smaller: a disk that is slow to wake up loses a rank.
FREE_HALTED_S = stretched(5.0)
# CPU time of a rank that was released and computes on. Smaller: a long call into C loses its rank.
STUBBORN_CPU_S = 10.0
# Interrupts that a rank caught and ran on, one each FREE_EVERY_S at most: some 6 s.
STUBBORN_INTERRUPTS = 30
# Seconds on the clock, for systems that tell nothing of threads. A starved rank may be given up
# there, so they are many.
FREE_UNKNOWN_S = stretched(8.0)

# ---- telling slow from stuck (diagnosis) ----

# The most CPU time that a poll takes: a thread wakes up, looks and sleeps. A step takes more.
CPU_OF_A_POLL_S = 0.0005
# Polls after which a key of a store does not come any more. Each is a turn: load cannot hide it.
VAIN_POLLS = 30
# How often a rank's descendants are looked up: it takes a file a thread.
CHILDREN_LOOK_EVERY_S = 1.0
# CPU time between two looks that may be rounding: /proc counts in hundredths of a second.
CPU_ROUNDING_S = 0.03
# Proven sleep until a rank that is asked by a signal counts as silent. It writes its stacks within
# milliseconds. Larger: the other ranks are not looked at for so long.
STACK_ANSWER_S = stretched(0.5)
STACK_POLL_S = 0.01  # how often the file that the rank writes is read
# How much later than its own limit a join is ended that has not met the other ranks. torch's error
# comes first where torch keeps the limit. Smaller: a crowded machine gets our error in its place.
JOIN_LATE_S = stretched(5.0)
# How much longer than its limit a join may take that torch tries once more: it begins its last try
# before the limit. Smaller: a released rank loses its variables a moment before torch gives up.
JOIN_LAST_TRY_S = stretched(2.0)
# A call with a time limit below this is left to raise torch's own error, and is no deadlock.
# Larger: a cell that gives its calls such limits hangs until then.
OWN_LIMIT_S = 60.0

# ---- a cell, and the line to the agents (kernel/cells, cell_transport, agent_client) ----

# How long a cell waits for news at a time. News wake it, so this only paces Stop and the looks.
CELL_TICK_S = 0.05
# Proven sleep, after the last reply, until output counts as lost and the cell says so.
OUTPUT_S = stretched(1.0)
# Proven sleep in which the death of a peer, which explains a lost connection, may still be heard
# of. Smaller: a victim is reported as a culprit. Larger: a network error is reported later.
NEWS_S = stretched(0.5)
# How often a cell looks whether the client's thread, which sends its requests, lives.
SEND_LOOK_EVERY_S = 1.0
# Proven sleep until an idle rank that does not say where it is counts as silent: without its
# answer, no deadlock is concluded.
IDLE_ANSWER_S = stretched(0.3)
# Proven sleep until a release counts as lost. Smaller: a late one cuts the group that comes next.
RELEASE_ANSWER_S = stretched(2.0)
CONTROL_POLL_S = 0.02  # how often both waits look; an answer ends them at once

# ---- groups (kernel/grouping, rank/membership, rank/release) ----

# How long idle ranks have to answer: it takes milliseconds. A rank that does not answer is told to
# let go, which does no harm to a slow rank, so this is no verdict.
IDLE_S = 0.2
GROUP_LOOK_EVERY_S = 0.1  # how often a join is looked at; the last answer ends it at once
# Proven sleep after which a rank will never leave its group, or open a store: it waits for nobody.
ALONE_ASLEEP_S = stretched(2.0)
# Proven sleep after which ranks will never join: each may have to wait for the slowest.
JOIN_ASLEEP_S = stretched(10.0)
# Turns after which a rank will never join: a wait for a store has one every 10 ms, so some 30 s.
JOIN_POLLS = 3000
# Seconds on the clock, for systems that tell nothing of threads.
GROUP_UNKNOWN_S = stretched(60.0)
# For the connection to a store, of which its owner has said that it is open.
STORE_S = stretched(60.0)
# The limit that ends a wait for a store at its next look.
STORE_ENDS_S = 0.001

# ---- starting and replacing ranks (kernel/session, supervisor_client, rank_processes, launchers) ----

# The default of `start_ranks` for each step of a start, in proven sleep; and how long a host that
# has let us in may take to import torch.
START_S = stretched(60.0)
# The controller's and the ranks' own limits for a start, which the kernel's limit must come before.
NEVER_S = stretched(3600)
# How often a wait for the supervisor looks at its process; a message from it ends the wait at once.
SUPERVISOR_LOOK_EVERY_S = 0.1
# How long the supervisor has to end all that it started, before it is killed.
SUPERVISOR_END_S = stretched(5.0)
# The same where ipyparallel's own commands stop a cluster: they report an error then.
CLUSTER_END_S = stretched(10)
CLUSTER_POLL_S = 0.02  # how often they look at the supervisor's process
CONNECTION_POLL_S = 0.005  # how often the controller's files are looked for: a start waits for them
# How long ipyparallel's thread has to begin its event loop, before which it cannot be ended.
LOOP_S = stretched(5.0)
# Proven sleep of the controller in which it may still free the number of a dead rank.
FORGET_S = stretched(5.0)
# Proven sleep after which a replacement has failed: a fork and a registration take far less.
REPLACE_S = stretched(10.0)
# The same for other launchers: to log in, to get a turn in a queue, and to import.
REPLACE_ELSEWHERE_S = stretched(60.0)

# ---- ranks that other launchers start (kernel/launched) ----

# Proven sleep until a rank that has registered and does not say where it is ends the start.
HOME_S = stretched(20.0)
# How often such a rank is asked again: a question that comes before its socket is lost.
HOME_ASK_EVERY_S = 1.0
# ssh: how long a host has to let us in, to count as there. ssh takes whole seconds only.
SSH_KNOCK_S = stretched(2)
# ssh: how long a host has to accept a connection. ssh itself would wait for minutes.
SSH_CONNECT_S = stretched(5)
# ssh: how long a host may take to let us in; all are asked at once. ipyparallel waits 10 s for each
# login.
SSH_LOGIN_S = stretched(20.0)
# Slurm: how long a command such as squeue may take. Slurm's own limit for a message is 10 s.
SLURM_COMMAND_S = stretched(30.0)
# Slurm: how long a cancelled job is waited for, before its end is left to Slurm.
SLURM_GONE_S = stretched(10.0)
# Slurm: after how long in the queue a learner is told of the job, with Slurm's reason.
SLURM_TELL_S = stretched(5.0)
# Slurm: how long an srun whose job is over has to end, before it is killed.
SLURM_END_S = stretched(5.0)
# Slurm: how long a job that is completing is waited for: Slurm says only later what ended it.
SLURM_CAUSE_S = stretched(15.0)
# Slurm: how often it is asked for a job in the queue, at first and after SLURM_SELDOM_AFTER_S: many
# users ask, and each question costs the cluster something.
SLURM_LOOK_EVERY_S = 1.0
SLURM_LOOK_SELDOM_S = 5.0
SLURM_SELDOM_AFTER_S = 10.0
SLURM_POLL_S = 0.1  # how often it is asked for a job that is about to end
# Proven sleep of mpiexec and its processes, after a death, which shows that mpiexec goes on.
MPI_END_S = stretched(3.0)
MPI_POLL_S = 0.05  # how often mpiexec is looked at: a process that ends wakes no thread here

# ---- heartbeats between controller and ranks (supervisor/controller, hearts, rank/engine) ----

# How often the controller sends a heartbeat, and how much later than that it may come.
HEARTBEAT_EVERY_MS = 500
HEARTBEAT_SLACK_MS = 500
# Missing heartbeats after which a rank without our supervisor takes its controller for gone: 8
# times 1 s. Smaller: a crowded machine loses ranks. Larger: ranks outlive a kernel that was killed.
RANK_MISSES = stretched(8)
# Missing answers after which the controller takes a rank on another machine for dead: 7.5 s, about
# as long. A supervisor or a nanny reports a death at once; a host that vanished reports nothing.
ELSEWHERE_MISSES = stretched(15)
# The same on this machine, where a late answer only means a busy rank: 10 minutes.
HERE_MISSES = stretched(1200)
# Ranks that subscribe to the heartbeats within this time are asked together.
HEARTBEAT_TOGETHER_S = 0.002

# ---- in a rank (rank/engine, rank/interrupts) ----

# How long a rank of another launcher waits for the controller, whose machine may be crowded.
REGISTER_S = stretched(120.0)
# How often an interrupt that was put off, as in an import, is tried again.
INTERRUPT_AGAIN_EVERY_S = 0.05
# How often a rank looks for its parent, where the system cannot tie a child to it.
PARENT_LOOK_EVERY_S = 1.0

# ---- supervisor (supervisor/supervisor) ----

# How long the controller and ranks have to end, before they are killed: a rank runs its atexit
# functions and writes its open files, and one that waits in C++ does not hear of it.
POLITE_S = stretched(2.0)
POLITE_POLL_S = 0.01  # how often the supervisor looks whether its children have ended
# How long the commands may take that end ranks elsewhere. They run only where the kernel is gone,
# so nobody waits for them.
END_COMMANDS_S = stretched(20.0)
