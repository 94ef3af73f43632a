"""
diagnosis
"""
