"""
rules
"""
