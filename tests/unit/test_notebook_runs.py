"""
Tests of the report of a notebook's run, which the notebook's own code may have replaced.
"""

import os

import pytest

from ddp_lessons.course.learner import notebook_runs
from ddp_lessons.errors import BadInput

CELLS = (
    '<testsuites><testcase name="Cell 0"/><testcase name="forged"/><testcase name="Cell 1">'
    "<failure>Traceback:\nNo.</failure></testcase></testsuites>"
)


def told(report):
    """
    Return what a report tells of each cell.
    """
    return notebook_runs._message_by_cell(
        report.with_name("x.ipynb"), report, 1, "\x1b[31msaid\x07"
    )


def test_each_cell_that_ran_is_told(tmp_path):
    """
    A cell that passed has an empty text, one that failed its message; other names do not count.
    """
    report = tmp_path / "report.xml"
    report.write_text(CELLS)
    assert told(report) == {0: "", 1: "No."}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["none", "link", "folder", "pipe", "huge", "cut off", "odd"])
def test_what_stands_in_place_of_a_report_is_not_read(tmp_path, kind):
    """
    A link, a folder, a pipe, a huge file and one that is no report are told, and nothing waits. No
    control character of the notebook's output reaches the teacher's terminal.
    """
    report, other = tmp_path / "report.xml", tmp_path / "other.xml"
    other.write_text(CELLS)
    make = {
        "none": lambda: None,
        "link": lambda: report.symlink_to(other),
        "folder": report.mkdir,
        "pipe": lambda: os.mkfifo(report),
        "huge": lambda: (report.write_text(CELLS), os.truncate(report, 2**30)),
        "cut off": lambda: report.write_text(CELLS[:40]),
        "odd": lambda: report.write_text('<?xml version="1.0" encoding="shift_jis"?><a/>'),
    }
    make[kind]()
    with pytest.raises(BadInput, match=r"^The notebook did not run: ") as refused:
        told(report)
    assert str(refused.value).endswith("\nsaid")
