"""
Tests that bitwise equal results stay equal on the other kinds of CPU that this one can imitate.

The rounding of a sum depends on the order of the additions, and so on the CPU's vector width and on
the number of threads. Results that are equal on one kind of CPU only are equal by luck.
"""

import os
import re
import subprocess
import sys

import pytest
from lessons import NOTEBOOKS, STEMS
from paths import ROOT

from ddp_lessons.course.building.verify import verify
from ddp_lessons.course.notebooks.notebook_paths import choose
from ddp_lessons.jobs.owned import run_owned

DEADLINE_S = 240.0
LEVELS = ["default", "avx2", "avx512"]
KINDS = {
    "one number at once": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
    },
    "AVX2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
    },
    "AVX-512": {
        "ATEN_CPU_CAPABILITY": "avx512",
        "MKL_ENABLE_INSTRUCTIONS": "AVX512",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
    },
    "any CPU": {"MKL_CBWR": "COMPATIBLE"},
    "three threads": {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3", "MKL_DYNAMIC": "FALSE"},
}
"""
Environment variables of PyTorch, MKL, oneDNN and OpenMP, for each kind.
"""
BITWISE = re.compile(r"last\s+(?:#\s+)?bit")

pytestmark = [pytest.mark.timeout(3 * DEADLINE_S)]


@pytest.fixture(scope="module")
def own_level():
    """
    Return the index in LEVELS of the highest level that this CPU supports, or 0 for an unknown one.
    """
    ask = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    environment = {k: v for k, v in os.environ.items() if k != "ATEN_CPU_CAPABILITY"}
    command = [sys.executable, "-c", ask]
    said = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    name = said.stdout.strip().lower()
    return LEVELS.index(name) if name in LEVELS else 0


@pytest.fixture(params=KINDS)
def kind(request, monkeypatch, own_level):
    """
    Set the variables with which new processes treat this CPU as another kind, and return its name.

    A kind that this CPU cannot imitate is skipped.
    """
    variables = KINDS[request.param]
    level = LEVELS.index(variables.get("ATEN_CPU_CAPABILITY", "default"))
    if level > own_level:  # PyTorch would obey, and die of an illegal instruction
        pytest.skip(f"this CPU has no {request.param}")
    if level and level == own_level:
        pytest.skip(f"{request.param} is what this CPU is")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return request.param


def test_what_is_bitwise_is_so_on_this_kind_of_cpu(kind):
    """
    Every test marked `bitwise` passes on this kind of CPU.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-m", "bitwise"]
    status = run_owned(command, cwd=ROOT, env=dict(os.environ), deadline_s=2 * DEADLINE_S)
    assert status == 0  # pytest exits with 5 if it selected no test


@pytest.mark.parametrize("kind", ["one number at once"], indirect=True)
@pytest.mark.parametrize(
    "stem",
    [
        stem
        for stem in STEMS
        if BITWISE.search("\n".join(c["source"] for c in NOTEBOOKS[stem].cells))
    ],
)
def test_lesson_that_speaks_of_last_bits_comes_out_on_this_kind_of_cpu(kind, stem):
    """
    Lessons that claim equality to the last bit give their stored outputs on this kind of CPU, and
    so do the solutions of their exercises, whose checks require it.
    """
    for paths in choose(ROOT, [stem]):
        verify(paths, deadline_s=DEADLINE_S)
