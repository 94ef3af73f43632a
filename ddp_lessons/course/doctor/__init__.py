"""
What this machine has for the course, and what it lacks: asked, measured, and told in a table.
"""
