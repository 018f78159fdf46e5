"""Contracts, settings, command line, speculator, engine plugin and endpoint of the adaptive speculator."""
