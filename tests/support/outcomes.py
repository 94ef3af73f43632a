"""
A plugin of pytest that notes how tests end, so that `scripts/run_tests.py` can go on from there.

    --outcomes FOLDER    write FOLDER/passed.txt and FOLDER/failed.json
    --resume             leave out the tests that stand in FOLDER/passed.txt
"""

import json
import re
from pathlib import Path

import pytest


def name_of(report_or_item):
    """
    Return a test's name without the group that pytest-xdist writes behind it, after an @.
    """
    return re.sub(r"@[^\]]+$", "", report_or_item.nodeid)


def pytest_addoption(parser):
    """
    Add the two options.
    """
    parser.addoption("--outcomes", type=Path, help="folder for what passed and what failed")
    parser.addoption("--resume", action="store_true", help="leave out what has passed before")


def pytest_configure(config):
    """
    Note outcomes in the process that hears of all tests; a worker of pytest-xdist hears of its own.
    """
    folder = config.getoption("outcomes")
    if folder is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Notes(folder, config.getoption("resume")))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """
    Leave out the tests that have passed, if the run goes on from an earlier one.
    """
    if not config.getoption("resume"):
        return
    noted = config.getoption("outcomes") / "passed.txt"
    passed = set(noted.read_text().splitlines()) if noted.exists() else set()
    config.hook.pytest_deselected(items=[item for item in items if name_of(item) in passed])
    items[:] = [item for item in items if name_of(item) not in passed]


class _Notes:
    def __init__(self, folder, resumes):
        self.passed, self.failed_file = folder / "passed.txt", folder / "failed.json"
        self.failed = {}
        self.failed_file.write_text("{}")
        if not resumes:
            self.passed.write_text("")

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self._note_failure(report)
        elif report.when == "teardown" and name_of(report) not in self.failed:
            with open(self.passed, "a") as file:
                file.write(f"{name_of(report)}\n")

    def pytest_collectreport(self, report):
        if report.failed:
            self._note_failure(report)

    def _note_failure(self, report):
        self.failed.setdefault(name_of(report), report.longreprtext)
        self.failed_file.write_text(json.dumps(self.failed))
