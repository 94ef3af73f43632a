"""
The commands for learners and teachers.

The subpackages build and check notebooks (`building`, `notebooks`, `rules`), and judge whether a
machine can run the course (`doctor`).
"""
