"""
Answers to exercise 12, one module for each task.
"""
