"""
A class: its board, the exercises that learners hand in, and their grades.
"""
