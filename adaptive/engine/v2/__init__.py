"""The plugin on vLLM's Model Runner V2 (CUDA): adapters under full CUDA graphs and async scheduling."""
