"""
Answers to exercise 09, one module for each task.
"""
