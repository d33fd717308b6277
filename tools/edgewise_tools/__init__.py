"""Helpers of tools/convert.py. Python's standard library and NumPy only; no module here runs anything it reads."""
