"""
A test of TensorBoard in a notebook of JupyterLab, as lesson 12 shows it.
"""

import psutil
import pytest
from waiting import comes_true

pytestmark = [pytest.mark.timeout(300)]

BOARD_S = 60.0
GONE_S = 20.0
WRITE = """
from torch.utils.tensorboard import SummaryWriter
with SummaryWriter("runs/first") as writer:
    for step in range(5):
        writer.add_scalar("my_loss", 1 / (1 + step), step)
"""
OPEN = """
from ddp_lessons.metrics import open_board
board = open_board("runs")
board
"""


def boards(server):
    """
    Return the TensorBoard processes of a server.
    """
    found = []
    for process in server.processes():
        try:
            if any("tensorboard.main" in word for word in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue  # it has ended
    return found


def test_board_is_seen_below_its_cell_and_ends_with_the_kernel(new_page, make_server):
    """
    TensorBoard is shown below its cell, and its process ends with the kernel.
    """
    lab = new_page(make_server())
    lab.open_notebook("board.ipynb", WRITE, OPEN)
    lab.run_cell(0)
    lab.run_cell(1)
    frame = lab.page.frame_locator('iframe[title="TensorBoard"]')
    frame.get_by_text("my_loss").first.wait_for(timeout=1000 * BOARD_S)
    assert boards(lab.server)
    lab.save("board.ipynb")
    lab.choose("File", "Close and Shut Down Notebook…")
    lab.confirm()
    assert comes_true(lambda: not boards(lab.server), GONE_S), boards(lab.server)
