"""
Answers to exercise 00, one module for each task.
"""
