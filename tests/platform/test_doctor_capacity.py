"""
Tests of the doctor's estimate of how many learners a server holds: its arithmetic, and a real
measurement.
"""

import io
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from paths import ROOT
from typer.testing import CliRunner

from ddp_lessons.course.cli import app
from ddp_lessons.course.doctor import load_probe, machine
from ddp_lessons.course.doctor.capacity import (
    HUB_BYTES,
    MIB,
    SERVER_BYTES,
    Learner,
    ServerResources,
    judge_room,
    seats,
)
from ddp_lessons.course.doctor.doctor import FAIL, GIB, OK, WARN, can_run
from ddp_lessons.course.doctor.load_probe import NotMeasured, measure
from ddp_lessons.course.doctor.table import NUM_COLUMNS, NUM_LINES, room_verdict, show_findings
from ddp_lessons.course.notebooks.canonical import read_notebook
from ddp_lessons.course.notebooks.notebook_paths import choose
from ddp_lessons.course.rules.reading_time import minutes

LEARNER = Learner(
    stem="06_ddp",
    minutes=30,
    memory_bytes=600 * MIB,
    cpu_s=30.0,
    dearest_cpu_s=4.0,
    dearest_cell=7,
)
SERVER = ServerResources(num_cores=8, free_bytes=32 * GIB)


def finding(what, num_learners=30, learner=LEARNER, server=SERVER):
    """
    Return the finding of a name.
    """
    (found,) = [one for one in judge_room(num_learners, learner, server) if one.what == what]
    return found


def test_room_that_fits_has_nothing_to_mend():
    """
    A room that fits causes no warning and no advice: needless warnings teach people to skip them.
    """
    findings = judge_room(30, LEARNER, SERVER)
    assert [found.status for found in findings] == [OK] * 4
    assert [found.mend for found in findings] == [""] * 4


def test_room_memory_counts_learners_servers_and_hub():
    """
    The memory of all learners, their servers and the hub must fit. With one MiB less the doctor
    says how much is missing, and how many learners would fit.
    """
    needed = HUB_BYTES + 30 * (LEARNER.memory_bytes + SERVER_BYTES)
    assert finding("memory", server=replace(SERVER, free_bytes=needed)).status == OK
    less = replace(SERVER, free_bytes=needed - MIB)
    found = finding("memory", server=less)
    assert found.status == FAIL
    assert found.found == "30 x 750 MiB and the hub: 22.2 GiB, of 22.2 GiB that are free"
    assert found.mend == "Give it 1 GiB more, or seat 29 learners, such as pairs."
    assert seats(LEARNER, replace(SERVER, free_bytes=0)) == 0


@pytest.mark.parametrize(("cores", "status", "share"), [(2, OK, "25%"), (1, OK, "50%")])
def test_room_cores_are_the_share_of_a_lesson(cores, status, share):
    """
    The load is the share of the cores' time in a lesson: 30 learners with 30 core seconds each need
    900 s of 1800 s on one core.
    """
    found = finding("cores", server=replace(SERVER, num_cores=cores))
    assert (found.status, share in found.found) == (status, True)


def test_room_cores_that_are_short_warn_and_then_fail():
    """
    Above half of the cores' time the doctor warns, because learners wait for each other; above all
    of it the room fails.
    """
    two = replace(SERVER, num_cores=2)
    busy = finding("cores", learner=replace(LEARNER, cpu_s=61.0), server=two)
    assert (busy.status, busy.mend.startswith("Give it 3 cores")) == (WARN, True)
    over = finding("cores", learner=replace(LEARNER, cpu_s=121.0), server=two)
    assert (over.status, over.mend.startswith("Give it 5 cores")) == (FAIL, True)


def test_room_that_runs_the_dearest_cell_at_once_waits():
    """
    The doctor warns if the most expensive cell takes too long when all run it at once: thirty cells
    of four core seconds need 120 s of one core.
    """
    assert finding("all at once", server=replace(SERVER, num_cores=2)).status == OK
    found = finding("all at once", server=replace(SERVER, num_cores=1))
    assert found.status == WARN
    assert found.found == "cell 7 takes 4.0 core seconds; run by all at once it takes 120 s"


def test_room_needs_a_python_that_all_can_run():
    """
    A Python in root's home fails the room, because other users cannot run it.
    """
    found = finding("Python", server=replace(SERVER, others_stop_at="/root"))
    assert found.status == FAIL
    assert "/root" in found.found
    assert "PYTHON=/usr/bin/python3" in found.mend


def test_room_s_findings_fit_one_screen():
    """
    The longest findings fit on one screen, and none is cut.
    """
    output = io.StringIO()
    worst = replace(SERVER, num_cores=1, free_bytes=GIB, others_stop_at="/root/.pyenv")
    findings = judge_room(100, replace(LEARNER, cpu_s=900.0), worst)
    assert [found.status for found in findings] == [FAIL, FAIL, FAIL, WARN]
    show_findings(findings, output, room_verdict(findings, 100))
    lines = output.getvalue().splitlines()
    assert lines[-1] == "This server does not hold 100 learners yet."
    assert len(lines) < NUM_LINES
    assert max(map(len, lines)) <= NUM_COLUMNS
    assert not any("…" in line for line in lines)


def test_others_stop_at_the_first_closed_door():
    """
    The first folder or file that other users cannot enter is found, also on the path to which a
    link leads.
    """
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made).resolve()
        folder.chmod(0o755)
        if machine.others_stop_at(folder):
            pytest.skip("others cannot pass the folder for temporary files")
        closed = folder / "closed"
        closed.mkdir(mode=0o700)
        (closed / "python").touch(mode=0o755)
        (folder / "link").symlink_to(closed / "python")
        for path in (closed / "python", folder / "link"):
            assert machine.others_stop_at(path) == str(closed)
        closed.chmod(0o755)
        assert machine.others_stop_at(closed / "python") == ""
        (closed / "python").chmod(0o750)
        assert machine.others_stop_at(folder / "link") == str(closed / "python")


@pytest.mark.timeout(300)
def test_room_is_measured_with_real_learners():
    """
    A real measurement gives plausible numbers: two kernels run the first cells of the lesson at
    once, with four ranks each.
    """
    (place,) = [place for place in choose(ROOT, ["06_ddp"]) if place.is_lesson]
    learner = measure(place, num_learners=2, num_cells=4)
    assert learner.stem == "06_ddp"
    assert learner.minutes == minutes(read_notebook(place.notebook))
    assert 150 * MIB < learner.memory_bytes < 4 * GIB  # a kernel, a supervisor and four ranks
    assert 0 < learner.dearest_cpu_s <= learner.cpu_s
    assert 1 <= learner.dearest_cell <= 4
    assert can_run(judge_room(1, learner, replace(SERVER, free_bytes=8 * GIB)))


def test_room_that_cannot_be_measured_says_why(monkeypatch):
    """
    If no learner could be measured, NotMeasured says why: a number without a run would mislead the
    teacher.
    """
    monkeypatch.setenv("DDP_LESSONS_RUNTIME_DIR", "/proc/nowhere")
    (place,) = [place for place in choose(ROOT, ["06_ddp"]) if place.is_lesson]
    with pytest.raises(
        NotMeasured, match=r"No learner could be measured: .*code cell 1: StartFail"
    ):
        measure(place, num_learners=1, num_cells=2)


def test_cli_doctor_room_exits_as_it_judges(monkeypatch):
    """
    The exit status of `doctor --room` is the verdict, for scripts that prepare servers.
    """
    asked = []

    def look(num_learners):
        asked.append(num_learners)
        return judge_room(num_learners, LEARNER, SERVER)

    monkeypatch.setattr(load_probe, "look_at_room", look)
    held = CliRunner().invoke(app, ["doctor", "--room", "30"])
    assert (held.exit_code, asked) == (0, [30])
    assert held.output.splitlines()[-1] == "This server holds 30 learners."
    assert CliRunner().invoke(app, ["doctor", "--room", "300"]).exit_code == 1
    assert CliRunner().invoke(app, ["doctor", "--room", "0"]).exit_code == 2
