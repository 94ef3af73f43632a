"""
Answers to exercise 09, a module a task.
"""
