"""The drafter in plain torch: head, adapter, loss, evaluation. Shared by the engine's checks, the learners and the recipe."""
