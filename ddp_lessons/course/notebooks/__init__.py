"""
What a notebook is: its cells and their roles, its text twin, its blank, and where it lies.
"""
