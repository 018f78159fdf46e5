"""Tests of adaptive/speculator and of the recipe that trains a turbo."""
