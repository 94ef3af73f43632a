"""
Set-up of all tests: the mark of each test's folder, the groups of tests that one worker runs in a
row, a process group of one rank, and the skipping of GPU tests where there is no GPU.
"""

import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A background job of a shell ignores Ctrl-C, and every process that a test starts would inherit
    # that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# nbformat imports jsonschema, which takes 1.2 s to compile a grammar of international addresses.
# No notebook has such an address, and jsonschema does without the grammar if it is not installed.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# An example's duration shows how busy the machine is, so no deadline applies to it.
settings.register_profile("by no clock", deadline=None)
settings.load_profile("by no clock")

pytest_plugins = ["outcomes"]
TESTS = Path(__file__).parent
FOLDERS = ("unit", "world", "notebooks", "answers", "faults", "platform", "browser")
"""
The folders of tests in the order in which they run; each test has its folder's mark. The cheap ones
come first. Notebooks, of which some take a minute, come before the many short answers, so that no
worker is left without work at the end.
"""


TIMEOUT_S = 300
"""
Seconds that a test may take if it has no `timeout` mark: longer than every limit within a test.

The limit is not set in pyproject.toml, because pytest would refuse to run with pytest-timeout's
option where that plugin is not installed: a notebook is checked there with nbval alone.
"""


def _folder(item):
    return item.path.relative_to(TESTS).parts[0]


def _group(item):
    """
    Return the name of the tests that one worker runs in a row: those of a file, which may share a
    fixture.

    A test of a whole notebook shares nothing and takes long, so each goes to a free worker. Answers
    are grouped by lesson, because all answers of a lesson run on the same ranks.

    Returns:
        str or None: The group's name; None for a test that goes alone to any worker.
    """
    if item.get_closest_marker("whole_notebook"):
        return None
    if _folder(item) == "answers" and hasattr(item, "callspec"):
        return f"{item.path.stem}-{item.callspec.id[:2]}"
    return item.path.stem


@pytest.fixture
def lone_group():
    """
    Join a process group of this process alone, the smallest world, and leave it after the test.
    """
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def sockets_before():
    """
    Return the sockets on which this process listens before ranks start on other hosts.
    """
    from ssh_ranks import own_sockets

    return own_sockets()


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in this hook
def pytest_collection_modifyitems(items):
    """
    Mark each test by its folder, run cheap folders first, and skip GPU tests without a GPU.
    """
    items.sort(key=lambda item: FOLDERS.index(_folder(item)))
    for item in items:
        item.add_marker(_folder(item))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
        if (group := _group(item)) is not None:
            item.add_marker(pytest.mark.xdist_group(group))
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items:
        import torch

        if not torch.cuda.is_available():
            for item in gpu_items:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
