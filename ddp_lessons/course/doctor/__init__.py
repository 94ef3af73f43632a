"""
The doctor: it measures what this machine has for the course, judges it, and prints a table.
"""
