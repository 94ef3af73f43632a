"""
Answers to exercise 05, a module a task.
"""
