"""The OpenAI endpoint: vLLM's server plus tenants."""
