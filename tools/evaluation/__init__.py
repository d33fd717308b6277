"""What tools/evaluate.py is made of: examples, server, sweeps, statistics, tables, plots."""
