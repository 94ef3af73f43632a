"""
Answers to exercise 04, a module a task.
"""
