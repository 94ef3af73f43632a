"""
Answers to exercise 06, a module a task.
"""
