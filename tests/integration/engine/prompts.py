"""Twenty short prompts of many kinds."""

PROMPTS = (
    "What is the capital of France?",
    "Write a haiku about rain.",
    "Count from 1 to 30.",
    "Write a Python function that reverses a string.",
    "List three uses of copper.",
    "Explain photosynthesis to a child.",
    "Give me a JSON object that describes a book.",
    "Translate 'good morning' into French.",
    "What is 17 times 23? Think step by step.",
    "Write a short story about a lighthouse keeper.",
    "Name five planets and one fact about each.",
    "Write an SQL query that counts orders per customer.",
    "How do I make pancakes?",
    "What does HTTP status 404 mean?",
    "Describe the water cycle.",
    "Write a polite e-mail that declines a meeting.",
    "What are the primary colours?",
    "Summarise the plot of Romeo and Juliet.",
    "Why is the sky blue?",
    "Give three tips for learning a language.",
)
