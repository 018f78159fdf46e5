"""The vLLM plugin: draft class, worker, runner, scheduler and capture."""
