"""
Tests of an exercise in a real browser: a wrong answer, hints, and the right answer.
"""

import pytest
from lab_server import ROOT
from playwright.sync_api import expect

from ddp_lessons.checks.kit.task_registry import find_task
from ddp_lessons.course.learner.exercises import find_exercise, solution_of
from ddp_lessons.course.notebooks.canonical import read_notebook

pytestmark = [pytest.mark.timeout(300)]

TASK = find_task("02.1")
SETUP, ANSWER, CHECK, PICTURE = range(4)  # the code cells of the first task, from 0
WRONG = """%%px
import torch.distributed as dist

def all_reduce(tensor):
    total = tensor.clone()
    dist.reduce(total, dst=0)
    return total
"""


def test_a_learner_goes_from_a_wrong_answer_over_hints_to_the_picture(lab):
    """
    A learner gets from a gap and a wrong answer, by two hints, to the right answer and its picture.
    """
    place = find_exercise("02", ROOT)
    cells = [c for c in read_notebook(place.blank).cells if c.cell_type == "code"]
    assert cells[CHECK].source == f"check.{TASK.name}()"
    last = len(cells) - 1  # stops the ranks; the test replaces it to ask for hints

    lab.open_file(f"exercises/{place.blank.name}")
    assert "4 ranks ready" in lab.run_cell(SETUP)
    lab.run_cell(ANSWER)
    assert "all_reduce is still blank" in lab.run_cell(CHECK)

    lab.write_cell(ANSWER, WRONG)
    lab.run_cell(ANSWER)
    refused = lab.run_cell(CHECK)
    assert f"Hint: {TASK.all_hints['not-everywhere']}" in refused
    assert "Traceback" not in refused
    assert "judging.py" not in refused

    lab.write_cell(last, 'hint("02.1")')
    assert TASK.hints[0] in lab.run_cell(last)
    assert TASK.hints[1] in lab.run_cell(last)

    lab.write_cell(ANSWER, solution_of("02.1"))
    lab.run_cell(ANSWER)
    assert lab.run_cell(CHECK).startswith(f"ok: 02.1 {TASK.name}, ")
    lab.run_cell(PICTURE)
    (picture,) = lab.pictures()
    assert picture[0] == "image/svg+xml"
    assert lab.photograph("exercise") == []


def test_the_tab_of_an_exercise_says_what_it_is(lab):
    """
    The tab of an exercise says "exercise", because a lesson and its exercise have the same file
    name.
    """
    name = find_exercise("00", ROOT).blank.name
    lab.open_file(f"exercises/{name}")
    lab.open_beside(f"notebooks/{name}")
    tabs = lab.page.locator(".lm-DockPanel-tabBar .lm-TabBar-tab", has_text=name)
    expect(tabs).to_have_count(2)
    expect(lab.page.locator('[title*="exercises/"] .lm-TabBar-tabLabel')).to_have_count(1)
    words = tabs.locator(".lm-TabBar-tabLabel").evaluate_all(
        "labels => labels.map(one => getComputedStyle(one, '::before').content)"
    )
    assert sorted(words) == ['"exercise · "', "none"]
    assert tabs.all_inner_texts() == [name, name]  # the label itself stays the file's name
    lab.wait_for_kernel("idle")
