"""
kernel
"""
