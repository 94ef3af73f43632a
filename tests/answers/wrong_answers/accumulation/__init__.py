"""
Answers to exercise 07, one module for each task.
"""
