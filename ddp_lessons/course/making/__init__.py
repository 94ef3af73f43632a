"""
making
"""
