"""Benchmarks; `make bench NAME=x` runs one."""
