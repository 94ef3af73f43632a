"""
Answers to the exercises: wrong ones, and right ones that nobody expects.

A folder a stem, in it a module a task; `sources` is what answers to several tasks are made from.
"""
