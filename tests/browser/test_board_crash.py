"""
A test of the class board of a workshop's hub, from the one line of its configuration to a crash.
"""

import subprocess

import psutil
import pytest
from hub_config import BOARD_SETTINGS
from hub_room import BACK_S, at_lab, write_notebook
from playwright.sync_api import expect

pytestmark = [pytest.mark.timeout(600)]

GONE_S = 10.0
HUB_SETTINGS = BOARD_SETTINGS
CHECK = """
from ddp_lessons.progress import notes
notes.note_check("00.1", passed=False, mistake="all-items")
"""


def assert_shows(page, name, tries):
    """
    Assert that the teacher's page gets to show one learner with a number of tries at task 00.1.
    """
    expect(page.locator("#state")).to_have_text("1 on the board", timeout=1000 * BACK_S)
    expect(page.locator("tbody th")).to_have_text([name])
    page.get_by_label("Lesson").select_option("00_ranks")
    told = [f"{tries} all-items"]
    expect(page.locator("td.tried")).to_have_text(told, timeout=1000 * BACK_S)


def test_board_is_back_after_a_crash_of_the_hub(hub, seats, pages):
    """
    After the hub was killed and started again, the teacher's open page shows the learner's row and
    the next check, and so does a page that is opened anew. Nothing is left of the old services.
    """
    teacher, learner = seats[:2]
    groups = ["usermod", "--groups", "teachers", teacher.name]
    subprocess.run(groups, check=True, capture_output=True)
    lab, page = pages(learner), pages(teacher).page
    learner.log_in(lab.page)
    at_lab(lab)
    notebook = write_notebook(learner, "work.ipynb", CHECK, CHECK)
    lab.open_file(f"my-course/notebooks/{notebook.name}")
    lab.run_cell(0)
    teacher.log_in(page, to="services/board/")
    assert_shows(page, learner.name, 1)

    old = hub.services()
    assert len(old) == 2
    hub.kill_hub()
    assert psutil.wait_procs(old, GONE_S)[1] == []
    hub.start()
    lab.open_file(f"my-course/notebooks/{notebook.name}")  # a complaint of Lab's is over it
    lab.run_cell(1)
    assert_shows(page, learner.name, 2)
    page.reload()
    assert_shows(page, learner.name, 2)
    assert len(hub.services()) == 2
    assert "Client secret mismatch" not in hub.log()

    page = pages(learner).page
    learner.log_in(page, to="services/board/")
    page.get_by_role("heading", name="You do not have permission").wait_for()
