"""
A job that really hangs for a moment, in a thread of each rank: its stacks, and its end.

One rank leaves the way of the others, and they wait for it in their next all-reduce. When all have
been dumped, it gets what it waits for, comes to that all-reduce too, and the job runs to its end.

Legend: the script is job.py; its lines are drawn anew with each case.
"""

import linecache
import queue
import sys
import threading
import time
import traceback
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random

import torch
import torch.distributed as dist

SCRIPT, HELPER, LIBRARY = "job.py", "my_job.py", "wire.py"
FAULTS = {
    # how the rank goes away -> the function it goes to, and the line at which it leaves the others
    "waits for a batch": ("load", "    return batches.get()"),
    "waits in a helper": ("load_by_helper", "    return fetch(batches)"),
    "validates alone": ("validate", "    average(torch.ones(1), other)"),
    "saves alone": ("save", "    dist.barrier(group=other)"),
}
_TIMEOUT = timedelta(seconds=120)  # of a group: the job ends by itself, long before
_PATIENCE_S = 120.0  # for a step that takes milliseconds: a crowd may keep a rank from its core
_LOOK_EVERY_S = 0.005
_WAITS = {
    # the line at which a thread waits for others -> a name that its function has by then
    "work.wait()": "work",
    "waiter.acquire()": "saved_state",  # of two such lines, the one that waits
}
_DIGITS = (2, 3, 4, 1)  # of the line at which the culprit leaves the others, job by job
_MAIN_FIRST = 3  # in jobs with lines of so many digits main stands first: the inner line is larger
_PARTS = (
    "def average(tensor, group):\n    reduce(tensor, group)",
    "def load():\n    return batches.get()",
    "def load_by_helper():\n    return fetch(batches)",
    "def validate():\n    average(torch.ones(1), other)",
    "def save():\n    dist.barrier(group=other)",
    "def train():\n    average(torch.ones(4), whole)",
)
_MAIN = """\
def main():
    for step in range(2):
        if step == 1 and is_culprit:
            go_away()
        train()
"""


@dataclass(frozen=True)
class Incident:
    """
    Hold one hang of a job: who is the culprit, how, and the text of its scripts.

    Args:
        fault: One of FAULTS.
        culprit: The rank.
        source: The text of job.py.
        helper: The text of my_job.py.
        libraries: For each rank the text of wire.py, a library. Ranks that wait in one place may be
            at different lines of it, and one's may have the number of the culprit's in job.py.
    """

    fault: str
    culprit: int
    source: str
    helper: str
    libraries: tuple

    @property
    def line(self):
        """
        The line of job.py at which the culprit leaves the others' way.
        """
        return self.source.splitlines().index(FAULTS[self.fault][1]) + 1


def incidents(case):
    """
    Return the Incidents of a case, the same in the kernel and on the ranks.

    Args:
        case: The Case, with a list of `faults`.
    """
    rng = Random(case.seed)
    found = []
    for number, fault in enumerate(case["faults"]):
        parts, num_digits = list(_PARTS), _DIGITS[number % len(_DIGITS)]
        rng.shuffle(parts)
        source = _source(rng, parts, fault, num_digits)
        helper = "#\n" * rng.randint(100, 160) + "def fetch(batches):\n    return batches.get()\n"
        culprit = rng.randrange(case.world_size)
        culprit = 0 if number == 1 else culprit  # whoever takes rank 0 for none is seen there
        made = Incident(fault, culprit, source, helper, ())
        found.append(replace(made, libraries=_libraries(rng, made, case)))
    return found


def _libraries(rng, incident, case):
    """
    Return the text of the library for each rank: the same, if `libraries` does not say otherwise.
    """
    lines = [rng.randint(60, 90)] * case.world_size
    if "libraries" in case.data:
        lines = rng.sample(range(60, 60 + 10 * case.world_size), case.world_size)
        # One of those that wait is there at the line that is looked for. Not all others are alike.
        lines[(incident.culprit + 1) % case.world_size] = max(incident.line, 2)
    body = "def reduce(tensor, group):\n    dist.all_reduce(tensor, group=group)\n"
    return tuple("#\n" * (line - 2) + body for line in lines)


def _source(rng, parts, fault, num_digits):
    """
    Return the text of job.py, whose parts lie apart by gaps of drawn length.

    Args:
        rng: A random.Random.
        parts: Its functions, in a drawn order.
        fault: One of FAULTS.
        num_digits: How many digits the number of the culprit's line has, 1 to 4; of 2, it may have
            one less.
    """
    gaps = [*(rng.randint(1, 9) for _ in parts), 0]
    if num_digits == 1:
        parts = sorted(parts, key=lambda part: FAULTS[fault][1] not in part)  # it comes first
        gaps[0] = min(gaps[0], 6)
    if num_digits > 2:
        # Gaps are so wide that lines of two parts differ in their first digits, too.
        gaps = [max(gap, 1) * 10 ** (num_digits - 2) for gap in gaps]
        gaps[0] += 10 ** (num_digits - 1)
    texts = [*(f"{part}\n\n\n" for part in parts), f"{_MAIN}\n\n"]
    spaced = ["#\n" * gap + text for gap, text in zip(gaps, texts, strict=True)]
    if num_digits == _MAIN_FIRST:
        spaced.insert(0, spaced.pop())
    return "".join(spaced)


def play_jobs(here):
    """
    Let each job of a case hang, and return for each the list of dumps, in rank order.

    Collective: every rank of the case must call it.
    """
    whole, other = (dist.new_group(backend="gloo", timeout=_TIMEOUT) for _ in range(2))
    try:
        return [_play(here, incident, whole, other) for incident in incidents(here.case)]
    finally:
        for group in (whole, other):
            dist.destroy_process_group(group)


def _play(here, incident, whole, other):
    is_culprit, batches, failed = here.rank == incident.culprit, queue.Queue(), []
    names = {"dist": dist, "torch": torch, "batches": batches, "whole": whole, "other": other}
    for text, file in ((incident.helper, HELPER), (incident.libraries[here.rank], LIBRARY)):
        exec(compile(text, str(here.folder / file), "exec"), names)
    names["is_culprit"] = is_culprit
    exec(compile(incident.source, str(here.folder / SCRIPT), "exec"), names)
    names["go_away"] = names[FAULTS[incident.fault][0]]

    def main():
        try:
            names["main"]()
        except RuntimeError as error:
            failed.append(error)

    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    # A culprit may wait in an all-reduce before it goes away: it is known by its line.
    away = f'{SCRIPT}", line {incident.line} in'
    dump = _dump_when_it_waits(thread, away if is_culprit else "in all_reduce")
    dumps = [""] * here.world_size
    dist.all_gather_object(dumps, dump)
    batches.put(None)
    if incident.fault == "validates alone" and not is_culprit:
        dist.all_reduce(torch.ones(1), group=other)
    if incident.fault == "saves alone" and not is_culprit:
        dist.barrier(group=other)
    thread.join(_PATIENCE_S)
    if failed or thread.is_alive():
        raise RuntimeError(f"The job of the check did not end: {failed or 'it still runs'}.")
    names.clear()  # its functions hold it, and it holds the groups, whose threads stay with them
    return dumps


def _dump_when_it_waits(thread, mark):
    """
    Return a thread's stack as faulthandler writes it, once it waits at a place that has a mark.

    It is known by its line. That a stack stays the same from look to look, or that the thread has
    no turn on a core meanwhile, tells little: where cores are busy, so does one on its way.
    """
    dump, give_up_at = "", time.monotonic() + _PATIENCE_S
    while time.monotonic() < give_up_at:
        frame = sys._current_frames().get(thread.ident)
        if frame is not None:
            waits, dump = _waits(frame), _dump(thread, frame)
            # The thread goes on while we look. It has not if it is in the same call afterwards.
            if waits and mark in dump and sys._current_frames().get(thread.ident) is frame:
                return dump
        time.sleep(_LOOK_EVERY_S)
    raise RuntimeError(f"The job of the check did not hang: it is at\n{dump}")


def _waits(frame):
    """
    Tell whether a thread is at a line that waits, or in what is called from there.
    """
    for at, number in traceback.walk_stack(frame):
        line = linecache.getline(at.f_code.co_filename, number).strip()
        if line in _WAITS and _WAITS[line] in at.f_locals:
            return True
    return False


def _dump(thread, frame):
    """
    Return a thread's stack as faulthandler writes it, from its innermost frame.

    Not by faulthandler itself: it may be asked by a thread for that thread alone. For others it
    goes through all of them without a lock, and crashes where one of torch's is just coming in.
    """
    lines = [
        f'  File "{at.f_code.co_filename}", line {line} in {at.f_code.co_name}'
        for at, line in traceback.walk_stack(frame)
    ]
    return "\n".join([f"Thread 0x{thread.ident:016x} (most recent call first):", *lines, ""])
