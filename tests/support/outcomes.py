"""
A pytest plugin that records how tests end, so that `scripts/run_tests.py` can resume a run.

    --outcomes FOLDER    write FOLDER/passed.txt and FOLDER/failed.json
    --resume             leave out the tests that FOLDER/passed.txt names
"""

import json
import re
from pathlib import Path

import coverage
import pytest


def name_of(report_or_item):
    """
    Return a test's name without the group that pytest-xdist appends after an @.
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
    Record outcomes in the main process, which receives the reports of all tests. A worker of
    pytest-xdist sees only its own tests.
    """
    folder = config.getoption("outcomes")
    if folder is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Notes(folder, config.getoption("resume")))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """
    Leave out the tests that have passed, if the run resumes an earlier one.
    """
    if not config.getoption("resume"):
        return
    noted = config.getoption("outcomes") / "passed.txt"
    passed = set(noted.read_text().splitlines()) if noted.exists() else set()
    config.hook.pytest_deselected(items=[item for item in items if name_of(item) in passed])
    items[:] = [item for item in items if name_of(item) not in passed]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item):
    """
    Save the lines that a test has reached before it is noted as passed. A run that is ended would
    lose them, and the run that resumes it leaves out the test.
    """
    counting = coverage.Coverage.current()
    if item.config.getoption("resume") and counting is not None:
        counting.save()


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
