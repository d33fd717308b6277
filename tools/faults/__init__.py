"""Parts of tools/plant_faults.py: which faults are planted, and which tests see them. Python's standard library only."""
