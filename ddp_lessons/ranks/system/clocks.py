"""
The runtime's clocks: all intervals, time limits and counts of turns.

A number in `stretched(...)` is a limit after which the runtime concludes, reports or ends
something. A slow machine needs longer limits, and DDP_LESSONS_CLOCK_SCALE=2 doubles them. All other
numbers stay as they are. These are intervals between two looks, which decide nothing, and limits
that load cannot use up, such as seconds of CPU time or turns of a thread. (A *turn* is one time
that a thread got a core and gave it back by itself.)

*Proven sleep* counts only seconds in which no awaited process ran or waited for a core (see
`load_aware_timeout`). "Smaller" and "Larger" in the comments say what would be lost by a smaller or
larger number. Modules read a number as `clocks.DEADLOCK_S`, and tests replace it here.
"""

import math
import os
from collections.abc import Mapping
from typing import overload

from ddp_lessons.errors import BadInput

SCALE_VARIABLE = "DDP_LESSONS_CLOCK_SCALE"


def scale_of(environment: Mapping[str, str]) -> float:
    """
    Return the factor by which an environment stretches the runtime's limits; 1.0 if it sets none.

    Args:
        environment: Variables by name, such as `os.environ`.

    Raises:
        BadInput: The variable is not a number, or is below 1: limits could fall below intervals.
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
The factor of this process. Controller, supervisor and ranks inherit the variable, and the kernel
passes it to ranks on other hosts.
"""


@overload
def stretched(limit: int) -> int: ...
@overload
def stretched(limit: float) -> float: ...
def stretched(limit: float) -> float:
    """
    Return a limit times the scale. A whole number stays whole, because some programs require that.
    """
    longer = limit * SCALE
    return math.ceil(longer) if isinstance(limit, int) else longer


# ---- load-aware timeout: a limit in seconds of proven sleep ----

# How often the processes are checked, which costs a hundred system calls. Larger: a short burst of
# work falls between two looks.
PATIENCE_LOOK_EVERY_S = 0.1
# Upper bound of the time that one look may add: the process that looks may have been starved, too,
# and cannot know what the others did meanwhile. It must exceed the interval, or sleep would be
# counted only in part.
PATIENCE_LONGEST_GAP_S = 0.25

# ---- stall monitor (kernel/stall_monitor) ----

# How often a running cell is checked. A shorter cell is never checked. Larger: every fault and
# deadlock is reported later.
STALL_LOOK_EVERY_S = 0.2
# Standstill after which ranks are asked for snapshots. Smaller: short pauses of a healthy cell lead
# to such requests. It is below the interval of looks, so the second look asks.
STALL_QUIET_S = 0.15
# Standstill after which a deadlock is concluded. Smaller: a pause between two training steps may be
# taken for a deadlock. Larger: with the time to release the ranks, the cell would not end within
# the promised 2 s.
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
# How long a rank may take to answer where the system shows no thread stats.
STALL_UNKNOWN_ANSWER_S = stretched(0.2)
# Proven sleep, after Stop, until ranks that have not answered are reported without their line.
STOP_ANSWER_S = stretched(1.0)
# How often a wait for answers reads the agents' thread stats: dozens of system calls a rank.
STALL_GUARD_LOOK_EVERY_S = 0.1
# How often a wait polls for an answer or for a change of the client's list of engines: neither
# wakes a thread of the kernel.
POLL_S = 0.002
# Turns in which the agent's thread would have answered if it could. The thread asks for the GIL
# every 5 ms, and Python code releases it at the next instruction. So C code holds the GIL.
GIL_HELD_TURNS = 40

# ---- releasing ranks (kernel/unblocking) ----

# How often a release is sent again to ranks that still wait. It costs one message a rank.
FREE_EVERY_S = 0.2
# Proven sleep after the release of all ranks, until a rank is given up. Only a thread or a child of
# the rank could still wake it. Both are checked, so this covers the time between two of their
# steps.
FREE_ASLEEP_S = stretched(0.35)
# Seconds after which a rank is given up that stays stopped after a SIGCONT, or that has waited for
# a disk without one turn. Smaller: a disk that is slow to spin up loses a rank.
FREE_HALTED_S = stretched(5.0)
# Proven sleep after which a rank is given up although it waits for a name server. The system asks
# again after 5 s, and gives up after 10 s. A store may look up several names, one after the other.
FREE_NAME_LOOKUP_S = stretched(20.0)
# CPU time after which a rank is given up that was released and still computes. Smaller: a long call
# into C loses its rank.
STUBBORN_CPU_S = 10.0
# Interrupts after which a rank is given up that catches each of them and goes on. One is sent each
# FREE_EVERY_S at most, so this takes some 6 s.
STUBBORN_INTERRUPTS = 30
# Wall-clock seconds until a rank is given up on systems without thread stats. The limit is long,
# because a starved rank would be given up, too.
FREE_UNKNOWN_S = stretched(8.0)

# ---- telling slow from stuck (diagnosis) ----

# The most CPU time that a poll takes: a thread wakes up, checks and sleeps. A training step takes
# more.
CPU_OF_A_POLL_S = 0.0005
# Unsuccessful polls of a store after which its key counts as never set. Each poll is a turn, so
# this limit does not depend on load.
VAIN_POLLS = 30
# How often the list of a rank's descendants is renewed. This reads one file for each thread.
CHILDREN_LOOK_EVERY_S = 1.0
# CPU time between two looks that may be rounding: /proc counts in hundredths of a second.
CPU_ROUNDING_S = 0.03
# Proven sleep until a rank that is asked for its stacks by a signal counts as silent. A rank writes
# them within milliseconds. Larger: the other ranks are not watched for so long.
STACK_ANSWER_S = stretched(0.5)
STACK_POLL_S = 0.01  # how often the file that the rank writes is read
# How long after its own limit a join is ended that has not met the other ranks. torch's error comes
# first where torch respects the limit. Smaller: a crowded machine gets our error in its place.
JOIN_LATE_S = stretched(5.0)
# How much longer than its limit a join may take, because torch begins its last try before the
# limit. Smaller: a released rank loses its variables a moment before torch gives up.
JOIN_LAST_TRY_S = stretched(2.0)
# A call with a time limit below this is left to raise torch's own error, and is no deadlock.
# Larger: a cell that sets such limits for its calls hangs until they are reached.
OWN_LIMIT_S = 60.0

# ---- a cell, and requests to the agents (kernel/cells, cell_transport, agent_client) ----

# How long a cell waits for replies at a time. A reply ends the wait, so this interval is only for
# Stop and for the stall monitor.
CELL_TICK_S = 0.05
# Proven sleep, after the last reply, until output counts as lost and the cell reports that.
OUTPUT_S = stretched(1.0)
# Proven sleep in which the death of a peer, which explains a lost connection, may still be
# reported. Smaller: a collateral rank is reported as culprit. Larger: a network error is reported
# later.
NEWS_S = stretched(0.5)
# How often a cell checks whether the client's thread, which sends its requests, is alive.
SEND_LOOK_EVERY_S = 1.0
# Proven sleep until an idle rank that does not send a snapshot counts as silent. Without its
# answer, no deadlock is concluded.
IDLE_ANSWER_S = stretched(0.3)
# Proven sleep until a release counts as lost. Smaller: a late release cuts the next group.
RELEASE_ANSWER_S = stretched(2.0)
CONTROL_POLL_S = 0.02  # how often both waits poll; an answer ends them at once

# ---- groups (kernel/regrouping, rank/group_membership, rank/release) ----

# How long idle ranks have to answer, which takes milliseconds. A rank that does not answer is
# released, which does no harm to a slow rank. So this limit decides nothing.
IDLE_S = 0.2
GROUP_LOOK_EVERY_S = 0.1  # how often a join is checked; the last answer ends it at once
# Proven sleep after which a rank will never leave its group, or open a store: neither waits for
# another rank.
ALONE_ASLEEP_S = stretched(2.0)
# Proven sleep after which ranks will never join. It is longer, as each may wait for the slowest.
JOIN_ASLEEP_S = stretched(10.0)
# Turns after which a rank will never join. A wait for a store has one every 10 ms, so some 30 s.
JOIN_POLLS = 3000
# Wall-clock seconds after which a rank will never join, on systems without thread stats.
GROUP_UNKNOWN_S = stretched(60.0)
# Time limit for the connection to a store that its owner has reported as open.
STORE_S = stretched(60.0)
# Time limit that is set on a store to end a wait for it at the next poll.
STORE_ENDS_S = 0.001

# ---- starting and replacing ranks (kernel/session, supervisor_client, rank_processes, launchers)

# The default of `start_ranks` for each step of a start, in proven sleep. Also how long a host may
# take to import torch after the login.
START_S = stretched(60.0)
# The controller's and the ranks' own limits for a start. The kernel's limit must be reached first.
NEVER_S = stretched(3600)
# How often a wait for the supervisor checks its process. A message from it ends the wait at once.
SUPERVISOR_LOOK_EVERY_S = 0.1
# How often the supervisor looks at its ranks' memory, if a hub limits it.
MEMORY_LOOK_EVERY_S = 1.0
# How long the supervisor has to end all processes that it has started, before it is killed.
SUPERVISOR_END_S = stretched(5.0)
# The same limit for ipyparallel's own commands that stop a cluster. They then report an error.
CLUSTER_END_S = stretched(10)
CLUSTER_POLL_S = 0.02  # how often these commands check the supervisor's process
CONNECTION_POLL_S = 0.005  # how often a start checks for the controller's connection files
# How long ipyparallel's thread has to start its event loop. It cannot be ended before.
LOOP_S = stretched(5.0)
# Proven sleep of the controller in which it may still release the engine id of a dead rank.
FORGET_S = stretched(5.0)
# Proven sleep after which a replacement has failed: a fork and a registration take far less.
REPLACE_S = stretched(10.0)
# The same for other launchers, which have to log in, wait in a queue, and import.
REPLACE_ELSEWHERE_S = stretched(60.0)

# ---- ranks that other launchers start (kernel/launchers) ----

# Proven sleep until a start fails because a registered rank does not answer where it runs.
HOST_INFO_S = stretched(20.0)
# How often such a rank is asked again: a request that comes before its socket exists is lost.
HOST_INFO_EVERY_S = 1.0
# ssh: how long a host has to accept a login, to count as reachable. ssh takes whole seconds only.
SSH_KNOCK_S = stretched(2)
# ssh: how long a host has to accept a connection. ssh itself would wait for minutes.
SSH_CONNECT_S = stretched(5)
# ssh: how long a login may take. All logins start at once. ipyparallel waits 10 s for each login.
SSH_LOGIN_S = stretched(20.0)
# Slurm: how long a command such as squeue may take. Slurm's own limit for a message is 10 s.
SLURM_COMMAND_S = stretched(30.0)
# Slurm: how long we wait for a cancelled job to end, before we leave its end to Slurm.
SLURM_GONE_S = stretched(10.0)
# Slurm: time in the queue after which the learner gets a message about the job and Slurm's reason.
SLURM_TELL_S = stretched(5.0)
# Slurm: how long an srun has to end after its job, before it is killed.
SLURM_END_S = stretched(5.0)
# Slurm: how long we wait for a completing job. Slurm reports only later what has ended it.
SLURM_CAUSE_S = stretched(15.0)
# Slurm: how often we ask for a job in the queue, at first and after SLURM_SELDOM_AFTER_S. Many
# users ask, and each request puts load on the cluster.
SLURM_LOOK_EVERY_S = 1.0
SLURM_LOOK_SELDOM_S = 5.0
SLURM_SELDOM_AFTER_S = 10.0
SLURM_POLL_S = 0.1  # how often we ask for a job that is about to end
# Proven sleep of mpiexec and its processes, after a death, which shows that mpiexec goes on.
MPI_END_S = stretched(3.0)
MPI_POLL_S = 0.05  # how often mpiexec is checked: a process that ends wakes no thread of the kernel

# ---- heartbeats (supervisor/controller_options, supervisor/heartbeat, rank/rank_engine) ----

# How often the controller sends a heartbeat, and how much later than that it may arrive.
HEARTBEAT_EVERY_MS = 500
HEARTBEAT_SLACK_MS = 500
# Missing heartbeats after which a rank without our supervisor takes its controller for gone: 8
# times 1 s. Smaller: a crowded machine loses ranks. Larger: ranks outlive a kernel that was killed.
RANK_MISSES = stretched(8)
# Missing answers after which the controller takes a rank on another machine for dead: 7.5 s, about
# the same time. A supervisor or ipyparallel's `KernelNanny` reports a death at once; a host that
# vanished reports nothing.
ELSEWHERE_MISSES = stretched(15)
# The same on this machine, where a late answer only means a busy rank: 10 minutes.
HERE_MISSES = stretched(1200)
# Ranks that subscribe to the heartbeats within this time are asked together.
HEARTBEAT_TOGETHER_S = 0.002

# ---- in a rank (rank/rank_engine, rank/interrupts) ----

# How long a rank of another launcher waits for the controller, whose machine may be crowded.
REGISTER_S = stretched(120.0)
# How often an interrupt that was postponed, such as in an import, is tried again.
INTERRUPT_AGAIN_EVERY_S = 0.05
# How often a rank checks for its parent, where the system cannot end a child with its parent.
PARENT_LOOK_EVERY_S = 1.0

# ---- supervisor (supervisor/supervisor) ----

# How long the controller and ranks have to end, before they are killed. A rank runs its atexit
# functions and writes its open files. A rank that waits in C++ does not react at all.
POLITE_S = stretched(2.0)
POLITE_POLL_S = 0.01  # how often the supervisor checks whether its children have ended
# How long commands may take that end ranks on other hosts. They run only after the kernel has
# ended, so no learner waits for them.
END_COMMANDS_S = stretched(20.0)
