"""The drafter in plain torch: head, adapter, loss, evaluation; shared by learners, recipe and checks."""
