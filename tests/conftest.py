"""
What every test shares: a mark from its folder, which tests one worker runs in a row, a group of
one process, and the GPU that some tests need.
"""

import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A job in the background of a shell ignores Ctrl-C, and so would all that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# nbformat imports jsonschema, which takes 1.2 s to compile a grammar of international addresses.
# No notebook has such an address, and jsonschema does without the grammar if it is not installed.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# How long an example takes says how busy the machine is, and nothing of what it tests.
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
How long a test may take that says nothing else: longer than every limit within it. It is no option
of pytest's in pyproject.toml, which would refuse to run where pytest-timeout is not installed: a
notebook is checked there with nbval alone.
"""


def _folder(item):
    return item.path.relative_to(TESTS).parts[0]


def _group(item):
    """
    Name the tests that one worker runs in a row: those of a file, which may share a fixture.

    A test of a whole notebook shares nothing and takes long, so each goes to a free worker.
    Answers are grouped by lesson, because all answers of a lesson run on the same ranks.

    Returns:
        str or None: The group's name; None for a test that is handed out alone.
    """
    if item.get_closest_marker("whole_notebook"):
        return None
    if _folder(item) == "answers" and hasattr(item, "callspec"):
        return f"{item.path.stem}-{item.callspec.id[:2]}"
    return item.path.stem


@pytest.fixture
def lone_group():
    """
    A group of this process alone: the smallest world there is.
    """
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def sockets_before():
    """
    Give the sockets on which we listen before there are ranks on other hosts.
    """
    from ssh_ranks import own_sockets

    return own_sockets()


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in this hook, too
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
