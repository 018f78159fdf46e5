"""Recipe of the shipped turbo: broad prompts, text of the target itself, features, training, evaluation."""
