"""
Every lesson again and again: three times in a row, while others keep the cores busy, on 2 ranks.

It takes many minutes, so it is run by `make soak` and in CI, and not by `make test`.
"""

import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest
from test_lessons import NOTEBOOKS, STEMS, title_of

from ddp_lessons.course import execute, rules
from ddp_lessons.course.build import CELL_TIMEOUT_S, notebook_environment
from ddp_lessons.course.owned import run_owned
from ddp_lessons.course.places import choose
from ddp_lessons.course.verify import verify

ROOT = Path(__file__).parents[1]
DEADLINE_S = 240.0
ANY_NUMBER = [stem for stem in STEMS if title_of(stem)["any"]]

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3 * DEADLINE_S)]


@contextmanager
def busy_cores():
    """
    Keep every core busy with a process that does nothing else.
    """
    spin = [sys.executable, "-c", "while True: pass"]
    spinning = [subprocess.Popen(spin) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


@pytest.mark.parametrize("turn", [1, 2, 3])
@pytest.mark.parametrize("stem", STEMS)
def test_lesson_comes_out_three_times_in_a_row(stem, turn):
    """
    What comes out by luck does not come out three times.
    """
    (place,) = [place for place in choose(ROOT, [stem]) if place.is_lesson]
    verify(place, deadline_s=DEADLINE_S)


@pytest.mark.parametrize("stem", STEMS)
def test_lesson_comes_out_while_the_cores_are_busy(stem):
    """
    A learner's machine does other things too, and so does a server with thirty learners.
    """
    (place,) = [place for place in choose(ROOT, [stem]) if place.is_lesson]
    with busy_cores():
        verify(place, deadline_s=DEADLINE_S)


@pytest.mark.parametrize("stem", ANY_NUMBER)
def test_lesson_runs_on_two_ranks_where_it_says_so(tmp_path, stem):
    """
    A learner with two GPUs starts two ranks. Numbers differ then; what is asserted holds.
    """
    text = nbformat.writes(NOTEBOOKS[stem])
    assert "start_ranks(4)" in text
    notebook = tmp_path / f"{stem}.ipynb"
    notebook.write_text(text.replace("start_ranks(4)", "start_ranks(2)"), encoding="utf-8")
    command = [sys.executable, "-P", execute.__file__, str(notebook)]
    command += [f"--folder={ROOT / 'notebooks'}", f"--cell-timeout-s={CELL_TIMEOUT_S}"]
    environment = notebook_environment()
    status = run_owned(command, cwd=tmp_path, env=environment, deadline_s=DEADLINE_S)
    assert status == 0
    ran = nbformat.read(notebook, as_version=4)
    errors = [found for found in rules.findings(ran, is_lesson=True) if found.rule == "error"]
    assert errors == []
    outputs = [output.get("text", "") for cell in ran.cells for output in cell.get("outputs", ())]
    assert re.search(r"\[1\] ", "\n".join(outputs))
    assert not re.search(r"\[[23]\] ", "\n".join(outputs))
