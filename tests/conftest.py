"""
What every test shares: the order, cheapest first; a group of one; and the GPU that some need.
"""

import pytest

ORDER = ("ranks", "notebooks", "browser")
"""
Kinds of tests after the plain ones, as their markers say, from cheap to dear.
"""


def _cost(item):
    return max(
        (ORDER.index(name) + 1 for name in ORDER if item.get_closest_marker(name)), default=0
    )


@pytest.fixture
def lone_group():
    """
    A group of this process alone: the smallest world there is.
    """
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def pytest_collection_modifyitems(config, items):
    """
    Run cheap tests first, so that a plain mistake shows within seconds; skip GPU tests without one.

    Tests that soak are run by name only: they take as long as all others together.
    """
    if "soak" not in config.option.markexpr:
        soaking = [item for item in items if item.get_closest_marker("soak")]
        if soaking:
            config.hook.pytest_deselected(items=soaking)
            items[:] = [item for item in items if not item.get_closest_marker("soak")]
    items.sort(key=_cost)
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items:
        import torch

        if not torch.cuda.is_available():
            for item in gpu_items:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
