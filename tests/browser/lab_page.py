"""
A page of JupyterLab, used as a learner uses it: by menus, buttons and keys, and by visible text.
"""

import re
import time
from pathlib import Path

import nbformat
from playwright.sync_api import TimeoutError

SCREENSHOTS = Path(__file__).parent / "screenshots"

WIDTH, HEIGHT = 1280, 900
PATIENCE_S = 60.0
RUN_ALL_S = 120.0
_METADATA = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}

RUNNING = "[*]:"
NOT_RUN = "[ ]:"

_PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"
_ERROR = '.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.stderr"]'
_PROMPTS = f"""() => [...document.querySelectorAll('{_PANEL} .jp-CodeCell .jp-InputPrompt')]
    .map(prompt => prompt.textContent)"""
_TWO_FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
_SCROLLER = f"document.querySelector('{_PANEL} .jp-WindowedPanel-outer')"
_TO_TOP = f"() => {{ {_SCROLLER}.scrollTop = 0 }}"
_SCROLL_ON = f"""() => {{
    const scroller = {_SCROLLER}, end = scroller.getBoundingClientRect().bottom
    const last = [...scroller.querySelectorAll('.jp-Cell')].at(-1).getBoundingClientRect().bottom
    if (last <= end) return false
    scroller.scrollTop += scroller.clientHeight - 40
    return true
}}"""
_TOO_WIDE = f"""() => [...document.querySelectorAll('{_PANEL} *')]
    .filter(it => ['auto', 'scroll'].includes(getComputedStyle(it).overflowX))
    .filter(it => it.scrollWidth > it.clientWidth + 1)
    .map(it => it.textContent.slice(0, 80))"""
_PICTURES = f"""() => [...document.querySelectorAll('{_PANEL} .jp-OutputArea img')]
    .map(it => [it.src.match(/^data:([^;,]*)/)[1], it.naturalWidth, it.naturalHeight])"""


class LabPage:
    """
    One notebook in JupyterLab.

    Args:
        page: Playwright's page.
        server: The LabServer, or the Seat of a learner on a hub.
    """

    def __init__(self, page, server):
        self.page = page
        self.server = server
        page.set_default_timeout(PATIENCE_S * 1000)

    # ---- opening and closing ----

    def open_lab(self):
        """
        Open the server's own address, as the browser that JupyterLab starts does.
        """
        self._go_to(self.server.address())

    def open_notebook(self, name, *sources):
        """
        Write a notebook with these code cells into the server's folder, and open it alone.
        """
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        notebook = nbformat.v4.new_notebook(cells=cells, metadata=_METADATA)
        nbformat.write(notebook, self.server.notebooks / name)
        self.open_file(f"notebooks/{name}")

    def open_file(self, path):
        """
        Open a notebook of the server's folder alone.
        """
        self._go_to(self.server.address(f"lab/tree/{path}", query="reset&"))

    def open_beside(self, path):
        """
        Open a file of the server's folder from the menu, in a new tab.
        """
        self.choose("File", "Open from Path…")
        self.page.locator(".jp-Dialog input").fill(path)
        self.confirm()
        self._wait_for_notebook()

    def _go_to(self, address):
        self.page.goto(address)
        self._wait_for_notebook()

    def _wait_for_notebook(self):
        # A kernel that has not started also counts as idle: wait for its name first.
        self.page.locator(f"{_PANEL} .jp-Toolbar-kernelName", has_text="Python 3").wait_for()
        self.wait_for_kernel("idle")

    def wait_for_kernel(self, status):
        """
        Wait until the notebook's toolbar shows the kernel "idle" or "busy".
        """
        self.page.locator(
            f'{_PANEL} .jp-Notebook-ExecutionIndicator[data-status="{status}"]'
        ).wait_for()

    def choose(self, menu, *items):
        """
        Choose an item of a menu, or of a menu in a menu.
        """
        self.page.locator(".lm-MenuBar-itemLabel").get_by_text(menu, exact=True).click()
        for item in items:
            self.page.locator(".lm-Menu-itemLabel").get_by_text(item, exact=True).click()

    def confirm(self):
        """
        Press the accepting button of the dialog.
        """
        self.page.locator(".jp-Dialog button.jp-mod-accept").click()

    def questions(self):
        """
        Return the texts of all dialogs and notifications that JupyterLab shows.
        """
        return self.page.locator(".jp-Dialog, .Toastify__toast").all_text_contents()

    def wait_until_closed(self):
        """
        Wait until no notebook or a dialog is shown, and return the texts of `questions`.
        """
        is_over = f"document.querySelector('.jp-Dialog') || !document.querySelector('{_PANEL}')"
        self.page.wait_for_function(is_over)
        return self.questions()

    def save(self, name):
        """
        Save the notebook from the menu, and return the saved notebook.
        """

        def is_saved(response):
            return response.request.method == "PUT" and name in response.url

        with self.page.expect_response(is_saved) as answer:
            self.choose("File", "Save Notebook")
        assert answer.value.ok
        return nbformat.read(self.server.notebooks / name, as_version=4)

    # ---- running ----

    def prompts(self):
        """
        Return the prompt of every code cell: "[3]:", RUNNING or NOT_RUN.
        """
        return self.page.evaluate(_PROMPTS)

    def run_all(self, until):
        """
        Run all cells from the menu, and wait until code cell `until`, counted from 0, has run.

        The prompt of a waiting cell loses its star when an earlier cell fails, even if the cell
        will run.
        """
        self.choose("Run", "Run All Cells")
        self.page.wait_for_function(f"({_PROMPTS})().includes('{RUNNING}')")
        self.wait_for_cell(until, RUN_ALL_S)

    def errors(self):
        """
        Return the texts of all errors that cells show.
        """
        return self.page.locator(f"{_PANEL} {_ERROR}").all_text_contents()

    def start_cell(self, number):
        """
        Run one code cell, counted from 0, and wait until it shows that it runs or has run.
        """
        before = self.prompts()[number]
        self.cell(number).locator(".cm-content").click()
        self.page.keyboard.press("Control+Enter")
        self.page.wait_for_function(f"({_PROMPTS})()[{number}] != '{before}'")

    def wait_for_cell(self, number, deadline_s=PATIENCE_S):
        """
        Wait until a code cell, counted from 0, has run.
        """
        has_run = rf"/\d/.test(({_PROMPTS})()[{number}])"
        try:
            self.page.wait_for_function(has_run, timeout=1000 * deadline_s)
        except TimeoutError:
            raise AssertionError(f"{self.prompts()}\n{''.join(self.errors())}") from None

    def run_cell(self, number):
        """
        Run one code cell, counted from 0, and return the text of its output.
        """
        self.start_cell(number)
        self.wait_for_cell(number)
        return self.output(number)

    def write_cell(self, number, source):
        """
        Replace the text of a code cell, counted from 0, by typing.
        """
        self.cell(number).locator(".cm-content").click()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.insert_text(source)

    def press_stop(self):
        """
        Press the Stop button of the notebook's toolbar.
        """
        self.page.locator(f'{_PANEL} .jp-Toolbar [data-jp-item-name="interrupt"]').click()

    # ---- looking ----

    def cell(self, number):
        """
        Return the locator of a code cell, counted from 0.
        """
        return self.page.locator(f"{_PANEL} .jp-CodeCell").nth(number)

    def output(self, number):
        """
        Return the text that a code cell, counted from 0, shows under it.
        """
        return "".join(self.cell(number).locator(".jp-OutputArea-output").all_text_contents())

    def visible_error_line(self, number):
        """
        Return the first line that can be seen of the error under a code cell, counted from 0.
        """
        cell = self.cell(number)
        output = cell.locator(".jp-OutputArea-output").first.and_(cell.locator(_ERROR))
        deadline = time.monotonic() + PATIENCE_S
        while True:
            # An output outside of the visible part has no inner text, and the page still moves
            # while cells above are rendered: scroll to the output until its text exists.
            output.scroll_into_view_if_needed()
            lines = output.inner_text().strip().splitlines()
            if lines:
                return lines[0]
            assert time.monotonic() < deadline, f"no error is seen under code cell {number}"

    def pictures(self):
        """
        Return (MIME type, natural width, natural height) of every picture in an output.
        """
        return [tuple(picture) for picture in self.page.evaluate(_PICTURES)]

    def use_theme(self, theme):
        """
        Choose a theme from the menu, "JupyterLab Light" or "JupyterLab Dark", and wait for it.
        """
        self.choose("Settings", "Theme", theme)
        self.page.locator(f'body[data-jp-theme-name="{theme}"]').wait_for(state="attached")

    def photograph(self, name, height=1205):
        """
        Scroll from top to bottom, and store a screenshot of each part: SCREENSHOTS/name_01.png ...

        Args:
            name: The beginning of the files' names.
            height: Height of the window in pixels.

        Returns:
            list[str]: Beginnings of the texts that are wider than their boxes.
        """
        SCREENSHOTS.mkdir(exist_ok=True)
        for old in SCREENSHOTS.glob(f"{name}_*.png"):
            old.unlink()
        self.page.set_viewport_size({"width": WIDTH, "height": height})
        self.page.evaluate(_TO_TOP)
        too_wide, num_parts = set(), 0
        while True:
            self.page.evaluate(_TWO_FRAMES)
            num_parts += 1
            self.page.screenshot(path=SCREENSHOTS / f"{name}_{num_parts:02}.png")
            too_wide.update(self.page.evaluate(_TOO_WIDE))
            if not self.page.evaluate(_SCROLL_ON):
                return sorted(re.sub(r"\s+", " ", text) for text in too_wide)
