"""
Answers to exercise 10, a module a task.
"""
