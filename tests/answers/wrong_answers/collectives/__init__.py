"""
Answers to exercise 02, a module a task.
"""
