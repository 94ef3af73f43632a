"""
Tests of interrupts of a rank: immediate in a learner's code, but after the import of a library, and
after the first instruction of `__exit__`.
"""

import importlib
import sys

import pytest
from kernels import running_kernel

from ddp_lessons.ranks.rank import interrupts

LIBRARY, OWN = "a_library_of_this_test", "a_module_of_this_test"
LOOKS = "from ddp_lessons.ranks.rank.interrupts import imports_a_library\nimport sys\n"
FOUND = "found = imports_a_library(sys._getframe())\n"


@pytest.fixture
def snapshots(tmp_path, monkeypatch):
    """
    Yield two importable folders: one for installed packages, one for a learner's own modules.
    """
    libraries, own = tmp_path / "site-packages", tmp_path / "own"
    for folder in (libraries, own):
        folder.mkdir()
        monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(interrupts, "_LIBRARIES", (*interrupts._LIBRARIES, f"{libraries}/"))
    yield libraries, own
    for name in (LIBRARY, OWN):
        sys.modules.pop(name, None)


def test_a_library_that_is_imported_is_known(snapshots):
    """
    `imports_a_library` is true while a library is imported, also by a learner's module, and false
    in that module and in a call of a library's function.
    """
    libraries, own = snapshots
    (libraries / f"{LIBRARY}.py").write_text(
        LOOKS + FOUND + f"def look():\n    {FOUND}    return found"
    )
    (own / f"{OWN}.py").write_text(f"{LOOKS}import {LIBRARY}\n{FOUND}called = {LIBRARY}.look()")
    own_module = importlib.import_module(OWN)
    library = sys.modules[LIBRARY]
    assert library.found
    assert not own_module.found  # a script that trains as it is imported can be stopped
    assert not own_module.called  # also while it is in a library's function
    assert not library.look()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("after_s", [0.05, 0.3, 0.8])
def test_stop_leaves_no_library_imported_by_half(after_s):
    """
    Stop during an import never leaves a half-imported library: torch's modules cannot be imported a
    second time if an interrupt cut off the first import.
    """
    name = "torch.distributed.tensor"
    with running_kernel() as kernel:
        started = kernel.run("from ddp_lessons import start_ranks\nranks = start_ranks(2)")
        assert started.status == "ok"
        kernel.run(f"%%px\nimport {name}\nimport time\ntime.sleep(60)", stop_after_s=[after_s])
        result = kernel.run(f"%%px\nimport {name} as there\nprint(there.DTensor.__name__)")
    assert result.text == "[0] DTensor\n[1] DTensor\n", result


@pytest.mark.timeout(120)
def test_what_an_import_put_off_comes_after_it():
    """
    An interrupt that waited for the end of an import ends the cell after it, without a second Stop.
    """
    cell = "%%px\nimport torch.distributed.tensor\nimport time\nwhile True: time.sleep(0.01)"
    with running_kernel() as kernel:
        assert kernel.run("from ddp_lessons import start_ranks\nstart_ranks(2)").status == "ok"
        result = kernel.run(cell, stop_after_s=[0.2])
        assert result.ename == "CellStopped"
        assert kernel.run("%px print('there')").text == "[0] there\n[1] there\n"


@pytest.mark.timeout(120)
def test_what_a_block_has_changed_is_restored():
    """
    An interrupt while C++ blocks inside `torch.no_grad()` lets `__exit__` restore the gradient
    mode, though `__exit__` is the first Python function that the interrupt reaches.
    """
    waits = """%%px
import torch
from datetime import timedelta
from torch.distributed import HashStore
store = HashStore()
store.set_timeout(timedelta(seconds=1))
with torch.no_grad():
    store.wait(["a key that nobody sets"])"""
    with running_kernel() as kernel:
        assert kernel.run("from ddp_lessons import start_ranks\nstart_ranks(2)").status == "ok"
        assert kernel.run(waits, stop_after_s=[0.4]).ename == "CellStopped"
        result = kernel.run("%px print(torch.is_grad_enabled())")
    assert result.text == "[0] True\n[1] True\n", result


@pytest.mark.timeout(120)
def test_the_end_of_a_block_can_be_interrupted():
    """
    Stop ends a cell that blocks in an `__exit__`, such as that of a thread pool, which waits for
    all its work.
    """
    waits = """%%px
import threading
from concurrent.futures import ThreadPoolExecutor
never = threading.Event()
with ThreadPoolExecutor() as pool:
    pool.submit(never.wait)"""
    with running_kernel() as kernel:
        assert kernel.run("from ddp_lessons import start_ranks\nstart_ranks(2)").status == "ok"
        assert kernel.run(waits, stop_after_s=[0.4]).ename == "CellStopped"
        result = kernel.run("%%px\nnever.set()\nprint('kept')")
    assert result.text == "[0] kept\n[1] kept\n", result
