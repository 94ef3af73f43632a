"""
Answers to exercise 00, a module a task.
"""
