"""
Answers to exercise 08, a module a task.
"""
