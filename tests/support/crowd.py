"""
A crowded room: several learners run lessons at once on one machine, round after round.

    python tests/support/crowd.py --sessions 6 --rounds 3

Each session runs a lesson, compares every output with the stored one, and runs the next lesson.
Lessons may be slower on a crowded machine. A healthy rank that is lost, a wrong culprit, or a cell
that fails for a reason other than its own shows as an output that differs.
"""

import argparse
import io
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

from paths import ROOT

LESSONS = ("00_ranks", "02_collectives")
LIMIT_S = 3600.0
"""
Seconds that a cell may take, and also those that a lesson may take: the crowd may make both slow,
but a hang must end.
"""
_VERIFY = """
import sys
from pathlib import Path
from ddp_lessons.course.notebooks.notebook_paths import choose
from ddp_lessons.course.building.verify import verify
from ddp_lessons.errors import NotebookRefused
root, stem, limit_s = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
(place,) = [place for place in choose(root, [stem]) if place.is_lesson]
try:
    verify(place, cell_timeout_s=limit_s, deadline_s=limit_s)
except NotebookRefused as refused:
    sys.exit(str(refused))
"""


@dataclass(frozen=True)
class Run:
    """
    One lesson of one session. `said` holds the outputs that differed, and is empty if all agreed.
    """

    session: int
    turn: int
    stem: str
    seconds: float
    said: str


def crowd(num_sessions, num_rounds, lessons=LESSONS, limit_s=LIMIT_S, tell=lambda run: None):
    """
    Run lessons in several sessions at once.

    Args:
        num_sessions: The number of learners.
        num_rounds: The number of lessons that each learner runs, one after the other.
        lessons: Lesson ids. Session n begins with the nth, and goes on with the one after it.
        limit_s: Seconds that one lesson may take.
        tell: Function that is called with each Run as it ends.

    Returns:
        list[Run]: All runs, in the order in which they ended.
    """
    runs = []

    def session(number):
        for turn in range(num_rounds):
            stem = lessons[(number + turn) % len(lessons)]
            began = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-c", _VERIFY, str(ROOT), stem, str(limit_s)],
                cwd=ROOT,
                env=os.environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            said = done.stdout if done.returncode else ""
            run = Run(number, turn, stem, time.monotonic() - began, said)
            runs.append(run)
            tell(run)

    threads = [threading.Thread(target=session, args=(number,)) for number in range(num_sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return runs


def report(runs):
    """
    Return a text with the outputs that differed and the durations of the lessons.
    """
    told = io.StringIO()
    failed = [run for run in runs if run.said]
    for run in failed:
        print(f"== session {run.session}, round {run.turn}, {run.stem}\n{run.said}", file=told)
    seconds = sorted(run.seconds for run in runs)
    print(
        f"{len(runs)} lessons, {len(failed)} came out differently; "
        f"{seconds[0]:.0f} to {seconds[-1]:.0f} s each",
        file=told,
    )
    return told.getvalue()


def _main():
    parser = argparse.ArgumentParser(description="Run lessons in several sessions at once.")
    parser.add_argument("--sessions", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lessons", nargs="+", default=LESSONS)
    asked = parser.parse_args()

    def tell(run):
        word = "differs" if run.said else "same"
        print(f"{run.session}.{run.turn} {run.stem} {run.seconds:.0f} s {word}", flush=True)

    runs = crowd(asked.sessions, asked.rounds, asked.lessons, tell=tell)
    print(report(runs))
    return any(run.said for run in runs)


if __name__ == "__main__":
    sys.exit(_main())
