"""The parts of tools/evaluate.py: examples, server, sweeps, statistics, tables, plots."""
