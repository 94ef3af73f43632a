"""
system
"""
