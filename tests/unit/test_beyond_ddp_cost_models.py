"""
The times that a check computes for each possible mistake: each differs from the right time.
"""

import random

import pytest

from ddp_lessons.beyond_ddp.mesh import best_mesh, meshes, step_s
from ddp_lessons.checks.beyond_ddp.cost_models import (
    MISTAKES,
    best_of,
    draw_job,
    fault_of,
    is_close,
    job_of,
    seconds,
    tempting_job,
)


@pytest.mark.parametrize("seed", range(5))
def test_who_forgets_nothing_finds_what_the_package_finds(seed):
    """
    Without a mistake, the check's own calculation agrees with that of the package.
    """
    job = job_of(draw_job(random.Random(seed), 32, 4, 4))
    for mesh in meshes(32):
        assert is_close(seconds(job, mesh, "nothing"), step_s(job, *mesh))
    best = best_of(job)
    assert (best and best[0]) == best_mesh(job)


def test_every_mistake_changes_some_mesh():
    """
    Each mistake changes the time of some mesh. Otherwise an answer with it could not be
    distinguished from a right one.
    """
    job = job_of(draw_job(random.Random(1), 64, 4, 4))
    for name in MISTAKES:
        apart = [m for m in meshes(64) if not is_close(seconds(job, m, name), seconds(job, m))]
        assert apart, name


@pytest.mark.parametrize("rule", ["heads", "layers"])
def test_tempting_jobs_tempt(rule):
    """
    In a tempting job the fastest mesh breaks the rule, so an answer that forgets the rule is
    refused.
    """
    for seed in range(5):
        job = job_of(tempting_job(random.Random(seed), rule))
        tempting = [m for m in meshes(32) if (fault_of(job, *m) or ("",))[0] == rule]
        assert min(seconds(job, m) for m in tempting) < best_of(job)[1]
