"""
Tests of lesson 00 in a real browser, the first lesson that learners see.

The README's picture, docs/lesson_00.png, is the screenshot light_01.png that these tests write.
"""

import pytest
from lab_server import ROOT

from ddp_lessons.course.notebooks.canonical import canonical, read_notebook
from ddp_lessons.course.notebooks.cell_roles import IGNORED, RAISES, tags_of

pytestmark = [pytest.mark.timeout(300)]

STEM = "00_ranks"
MACHINE = "setup"  # its output depends on the machine


@pytest.fixture(scope="module")
def stored():
    return read_notebook(ROOT / "notebooks" / "executed" / f"{STEM}.ipynb")


def test_lesson_00_runs_in_the_browser(lab, stored):
    """
    Run All Cells in JupyterLab shows the stored outputs, errors and pictures, in both themes.
    """
    cells = [cell for cell in stored.cells if cell.cell_type == "code"]
    lab.open_lab()
    # Do not check the address: JupyterLab writes folder and notebook into it in either order.
    assert lab.page.get_by_role("heading", level=1).inner_text().startswith("What happens when")
    assert lab.questions() == []

    lab.run_all(until=len(cells) - 1)
    assert lab.prompts() == [f"[{n}]:" for n in range(1, len(cells) + 1)]
    check_outputs(canonical(lab.save(f"{STEM}.ipynb"), STEM), cells)
    check_errors(lab, cells)
    check_pictures(lab, cells)

    assert lab.photograph("light") == []
    lab.use_theme("JupyterLab Dark")
    assert lab.photograph("dark") == []
    assert lab.questions() == []


def test_an_answer_unfolds_when_the_cells_above_it_have_run(new_page, make_server):
    """
    The answer to a prediction is folded until the cell above it has run, and then it unfolds, with
    the section's check. The bar of a folded cell shows no line of it, and a cell that fails unfolds
    nothing.

    In the notebook of the shared server, another test has saved the answers unfolded.
    """
    lab = new_page(make_server())
    lab.open_lab()
    answer = lab.page.locator("p", has_text="You see 4 lines.")
    check = lab.page.locator(".cm-line", has_text="assert answers == [0, 1, 2, 3]")
    lab.run_cell(3)  # the picture, which fails, because it shows what the cell above it has found
    bar = lab.page.locator(".jp-PlaceholderText", has_text="You see 4 lines.")
    bar.wait_for(state="attached")
    assert not bar.is_visible()
    for number in range(3):  # the setup, the prediction, and the cell whose lines are counted
        lab.run_cell(number)
    assert not answer.is_visible()
    assert not check.is_visible()
    lab.run_cell(3)  # the picture
    answer.wait_for()
    check.wait_for()


def check_outputs(saved, cells):
    ran = [cell for cell in saved.cells if cell.cell_type == "code"]
    assert [cell.source for cell in ran] == [cell.source for cell in cells]
    for cell, expected in zip(ran, cells, strict=True):
        assert [shape(output) for output in cell.outputs] == [
            shape(output) for output in expected.outputs
        ]
        if not {IGNORED, MACHINE} & set(tags_of(expected)):
            assert [text(output) for output in cell.outputs] == [
                text(output) for output in expected.outputs
            ]


def shape(output):
    return (
        output.output_type,
        output.get("name"),
        output.get("ename"),
        sorted(output.get("data", "")),
    )


def text(output):
    data = {kind: it for kind, it in output.get("data", {}).items() if kind != "image/png"}
    return {**output, "data": data}


def check_errors(lab, cells):
    broken = [number for number, cell in enumerate(cells) if RAISES in tags_of(cell)]
    lines = [lab.visible_error_line(number) for number in broken]
    assert lines == [cells[number].outputs[0].evalue.splitlines()[0] for number in broken]
    assert [line.split(":")[0] for line in lines] == [
        "rank 2 raised RuntimeError",
        "rank 0 died",
    ]


def check_pictures(lab, cells):
    wanted = ("image/png", "image/svg+xml")
    kinds = [kind for c in cells for o in c.outputs for kind in o.get("data", {}) if kind in wanted]
    pictures = lab.pictures()
    assert [kind for kind, _, _ in pictures] == kinds
    assert set(kinds) == set(wanted)
    assert all(width > 50 and height > 50 for _, width, height in pictures), pictures


def test_a_lesson_that_was_only_looked_at_asks_nothing_when_it_is_closed(lab):
    """
    A lesson that was only opened can be closed without a question: JupyterLab adds the kernel's
    language to a notebook that lacks it, and then asks to save.
    """
    lab.open_file(f"notebooks/{STEM}.ipynb")
    lab.choose("File", "Close Tab")
    assert lab.wait_until_closed() == []
