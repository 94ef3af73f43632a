"""
warden
"""
