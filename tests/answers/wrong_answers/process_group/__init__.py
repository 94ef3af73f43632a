"""
Answers to exercise 01, one module for each task.
"""
