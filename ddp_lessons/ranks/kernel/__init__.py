"""
The code that runs in the notebook's kernel, next to the learner's own code: one process a notebook.

Jupyter starts and ends the kernel. The kernel starts the supervisor, and makes all decisions.
"""
