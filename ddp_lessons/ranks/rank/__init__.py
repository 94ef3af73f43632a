"""
Code that runs inside a rank, around the learner's cells: one process for each rank.

The supervisor forks the process, or ipyparallel's launcher starts it on another machine. A rank
ends with its parent. A rank that dies is replaced by a new process with the same number.
"""
