"""
A learner's own things: the folder, the exercises in it, and JupyterLab on both.
"""
