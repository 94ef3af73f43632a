"""
Answers to exercise 03, a module a task.
"""
