"""
For how long a rank's main thread has rested, or was halted: its pulse, followed from look to look.
"""

import time

from ddp_lessons.ranks.system.thread_stats import STOPPED, pulse_of


class Rest:
    """
    Follow the pulse of one rank from look to look: since when has it been at rest?

    Args:
        pid: Its process id.
        clock: Function that returns seconds.
        pulse: Function from a process id to its Pulse or None.
    """

    def __init__(self, pid, clock=time.monotonic, pulse=pulse_of):
        self.pid = pid
        self._clock = clock
        self._read = pulse
        self.first = self.last = pulse(pid)
        self.began_at = self._looked_at = self._halted_at = clock()
        self._resting = self.last

    def look(self):
        """
        Take the pulse anew.
        """
        before, now = self.last, self._clock()
        self.last = self._read(self.pid)
        had_no_turn = before and self.last and before.main_turns == self.last.main_turns
        if not (had_no_turn and before.main_sleeps and self.last.main_sleeps):
            self.began_at, self._resting = now, self.last
        if not (had_no_turn and before.main_halt and self.last.main_halt):
            self._halted_at = now
        self._looked_at = now

    @property
    def is_known(self):
        """
        Whether the system tells anything of this rank.
        """
        return self.last is not None

    @property
    def rest_s(self):
        """
        Seconds for which the main thread is known to have slept, without a single turn.
        """
        return self._looked_at - self.began_at

    @property
    def halt(self):
        """
        What halts the main thread, in words; empty if it had a turn since the look before.
        """
        return self.last.main_halt if self.last and self.halted_s > 0 else ""

    @property
    def is_stopped(self):
        """
        Whether a signal had stopped the main thread at the last look.
        """
        return bool(self.last) and self.last.main_halt == STOPPED

    @property
    def halted_s(self):
        """
        Seconds for which the main thread is known to have been halted, without a single turn.
        """
        return self._looked_at - self._halted_at

    @property
    def nothing_stirs(self):
        """
        Whether no other thread of the rank could still wake the main thread from its rest.

        All of them sleep, and Gloo's loops have looked at their sockets since the rest began.
        """
        pulse, resting = self.last, self._resting
        if pulse is None or resting is None:
            return pulse is None
        looked = (
            pulse.gloo_turns is None
            or resting.gloo_turns is None
            or pulse.gloo_turns - resting.gloo_turns >= 2
        )
        return pulse.others_sleep and looked

    @property
    def all_sleep(self):
        """
        Whether no thread at all runs or waits for a core, but for the guard's and Gloo's loops.
        """
        pulse = self.last
        return bool(pulse and pulse.main_sleeps and pulse.others_sleep and pulse.engine_sleeps)

    @property
    def cpu_s(self):
        """
        Seconds of CPU time that the main thread has had since the first look.
        """
        return self.last.main_cpu_s - self.first.main_cpu_s if self.last and self.first else 0.0

    def turns_since(self, pulse):
        """
        Return how many turns the main thread has had since an earlier pulse.
        """
        return self.last.main_turns - pulse.main_turns if self.last and pulse else 0

    @property
    def guard_turns(self):
        """
        Turns of its own choice that the guard's thread has had since the first look.
        """
        return self.last.guard_turns - self.first.guard_turns if self.last and self.first else 0
