"""
doctor
"""
