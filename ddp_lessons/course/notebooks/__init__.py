"""
The notebooks of the course: their cells and roles, text twins, starters and paths.
"""
