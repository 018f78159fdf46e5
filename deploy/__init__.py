"""Model recipes, the shipped turbo and deployment files."""
