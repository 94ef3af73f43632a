"""
Answers to exercise 10, one module for each task.
"""
