"""
Answers to exercise 06, one module for each task.
"""
