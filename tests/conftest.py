"""
What every test shares: the order, cheapest first; a group of one; and the GPU that some need.
"""

import fcntl
import os
import signal

import pytest
from kinds import AROUND, BANK

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A job in the background of a shell ignores Ctrl-C, and so would all that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

ORDER = ("ranks", "notebooks", "browser")
"""
Kinds of tests after the plain ones, as their markers say, from cheap to dear.
"""
ALONE = ("alone", "browser")
"""
Kinds of tests beside which no other may run.
"""


def _is_alone(item):
    return any(map(item.get_closest_marker, ALONE))


def _cost(item):
    kind = max(
        (ORDER.index(name) + 1 for name in ORDER if item.get_closest_marker(name)), default=0
    )
    return _is_alone(item), kind  # those for which all others must wait come last, in one go


def _group(item):
    """
    Name the tests that one worker runs in a row: those of a file, which may share a fixture.

    Tests of notebooks share nothing and take long, so each goes to whoever is free. The bank of
    answers is dealt out by lesson, each on ranks of its own.

    Returns:
        str or None: The name; None for a test that is dealt out by itself.
    """
    if item.get_closest_marker("notebooks"):
        return None
    words = [item.path.stem]
    if item.path.stem == BANK and hasattr(item, "callspec"):
        words.append(item.callspec.id[:2])
    if _is_alone(item):
        words.append("alone")
    return "-".join(words)


@pytest.fixture(autouse=True)
def _nobody_beside_what_measures(request, tmp_path_factory):
    """
    Let a test that is marked `alone` run while no other worker of pytest runs any.

    All others share a lock that it holds for itself. Who waits for it keeps the gate shut, or new
    ones would slip in before it for ever.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        yield
        return
    folder = tmp_path_factory.getbasetemp().parent
    is_alone = _is_alone(request.node)
    with open(folder / "gate", "w") as gate, open(folder / "lock", "w") as lock:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(lock, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield


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


def _is_around(item):
    return item.path.parent.name == "browser" or item.path.stem.removeprefix("test_").startswith(
        AROUND
    )


def _leave_out(kind, config, items):
    left_out = [item for item in items if item.get_closest_marker(kind)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker(kind)]


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in this hook, too
def pytest_collection_modifyitems(config, items):
    """
    Run cheap tests first, so that a plain mistake shows within seconds; skip GPU tests without one.

    Tests that soak are run by name only: they take as long as all others together. So is the whole
    bank of answers, by its file's name. Tests of what stands round the lessons wait to be asked
    for: by a mark that only they have, a file's name, or a word of theirs.
    """
    for item in filter(_is_around, items):
        item.add_marker(pytest.mark.around)
    asked_for = config.args_source is pytest.Config.ArgsSource.ARGS or config.option.keyword
    if not asked_for and not any(word in config.option.markexpr for word in ("around", "soak")):
        _leave_out("around", config, items)
    if "soak" not in config.option.markexpr:
        _leave_out("soak", config, items)
    if not any(BANK in argument for argument in config.args):
        _leave_out("bank", config, items)
    items.sort(key=_cost)
    for item in items:
        if (group := _group(item)) is not None:
            item.add_marker(pytest.mark.xdist_group(group))
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items:
        import torch

        if not torch.cuda.is_available():
            for item in gpu_items:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
