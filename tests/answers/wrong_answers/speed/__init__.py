"""
Answers to exercise 11, one module for each task.
"""
