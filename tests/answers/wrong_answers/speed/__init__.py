"""
Answers to exercise 11, a module a task.
"""
