"""
Answers to exercise 07, a module a task.
"""
