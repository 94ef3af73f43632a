"""
Answers to exercise 01, a module a task.
"""
