"""
Answers to exercise 05, one module for each task.
"""
