"""
What runs in the notebook's kernel, beside the learner's own code: one process a notebook.

Jupyter starts it and ends it. It starts the supervisor, and is the only one that decides anything.
"""
