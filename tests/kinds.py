"""
Which tests a plain run leaves out, by the names of their files.
"""

BANK = "test_wrong_answers"
"""
Whose tests the bank of answers is.
"""
AROUND = (
    "bench",
    "board",
    "build",
    "doctor_room",
    "frameworks_stored",
    "gpu",
    "hosts",
    "idle",
    "kinds",
    "kubernetes",
    "launch_joining",
    "launch_script",
    "launch_slurm",
    "many_machines_bed",
    "nbgrader",
    "other_user",
    "ranks_under",
    "share",
    "sidebar",
    "singleuser",
    "site",
    "slurm",
    "submissions",
    "verify",
    "wheel",
    "workshop",
)
"""
Tests of what stands round the lessons, by how their files' names begin after "test_": rooms and
boards, what is handed in, how notebooks are built and compared, how tests are chosen, launchers
beyond their lesson, packages and pages, benchmarks, other users and other machines. So are solved
exercises as notebooks: their solutions are run with the answers.
"""
