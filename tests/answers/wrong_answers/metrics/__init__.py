"""
Answers to exercise 12, a module a task.
"""
