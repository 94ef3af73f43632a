"""
Tests of the benchmark of a room full of learners: its figures, and a real room of two.
"""

import pytest
from paths import BENCHMARKS
from processes import new_mark, wait_until_gone


@pytest.fixture
def room(monkeypatch):
    """
    Return the benchmark's module.
    """
    monkeypatch.syspath_prepend(BENCHMARKS)
    import room

    return room


def learner(room, number, **changes):
    """
    Return a learner without faults, with some attributes changed.
    """
    made = room.Learner(number, seconds=[0.1, 0.2, 0.3], memory_mib=500.0 + number)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def verdicts(figures):
    return {figure.name.partition(": ")[2]: figure.verdict for figure in figures if figure.verdict}


def test_room_without_faults_passes(room):
    """
    A room without faults passes. Its memory is the median of the learners, and its seconds are
    those of all cells together.
    """
    figures = room.figures_of([learner(room, number) for number in range(3)], 0)
    assert set(verdicts(figures).values()) == {"pass"}
    memory, middle, slow = figures[:3]
    assert memory.value == 501.0
    assert middle.value == 0.2
    assert 0.2 < slow.value <= 0.4
    assert figures[0].name == "3 learners: memory of one"
    assert room.figures_of([learner(room, 0)], 0)[0].name == "1 learner: memory of one"


@pytest.mark.parametrize(
    ("changes", "left", "what"),
    [
        ({"faults": ["code cell 3: ValueError"]}, 0, "learners with a cell that failed"),
        ({"has_lost_ranks": True}, 0, "learners who lost a rank"),
        ({"is_stuck": True}, 0, "learners who were stuck"),
        ({}, 2, "processes left at the end"),
    ],
)
def test_room_with_a_fault_fails(room, changes, left, what):
    """
    A single learner with a fault fails the room, and so does a process that is left.
    """
    learners = [learner(room, 0), learner(room, 1, **changes)]
    failed = {
        name
        for name, verdict in verdicts(room.figures_of(learners, left)).items()
        if verdict == "FAIL"
    }
    assert failed == {what}


@pytest.mark.timeout(300)
def test_room_of_two_is_measured_and_gone(room, monkeypatch):
    """
    A room with two real kernels is measured and leaves no process. A failing cell is noted, and the
    room continues.
    """
    mark = new_mark()
    for name, value in mark.items():
        monkeypatch.setenv(name, value)
    cells = [(source, False) for source in (
        "from ddp_lessons import start_ranks\nranks = start_ranks(2)", "%px x = 1", "%px x / 0",
    )]  # fmt: skip
    learners = room.run_room(2, cells, pace_s=0.01)
    assert [len(one.seconds) for one in learners] == [3, 3]
    for one in learners:
        assert len(one.faults) == 1
        assert one.faults[0].startswith("code cell 3: RankRaised: ")
        assert not one.is_stuck
        assert not one.has_lost_ranks
        assert one.memory_mib > 100
        assert len(one.pids) >= 5
    assert room.num_left(learners) == 0
    wait_until_gone(mark, 10)


def test_room_runs_the_lesson_s_cells_but_the_last(room):
    """
    The room runs all cells of the lesson but the last, which would stop the ranks before their
    memory is measured.
    """
    cells = room.cells_of()
    assert "start_ranks(4)" in cells[0][0]
    assert not any(".stop()" in source for source, _ in cells)
