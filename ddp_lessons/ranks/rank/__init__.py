"""
What runs inside a rank, around the learner's cells: one process a rank.

The supervisor forks it, or ipyparallel's launcher starts it on another machine. It ends with its
parent; one that dies is replaced by a new one with the same number.
"""
