"""Ray learners that keep every tenant's adapter better than turbo."""
