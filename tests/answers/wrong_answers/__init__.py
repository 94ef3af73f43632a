"""
The bank's answers to the exercises: wrong ones, and unusual right ones.

Each exercise has a folder, and each task a module in it. `sources` has the source from which
answers to several tasks are made.
"""
