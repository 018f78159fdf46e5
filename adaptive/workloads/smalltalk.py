"""Workload "chat": general questions in English, of the kind that turbo's mix covers but with topics of their own."""

from __future__ import annotations

from adaptive.workloads.prompt import Prompt, Workload, chat
from adaptive.workloads.split import cross, shuffled

_MAX_TOKENS = 128
_HELD_OUT = (6, 7)

_TOPICS = (
    "keeping bees on a roof", "the history of lighthouses", "learning to juggle", "how glaciers move", "sourdough bread",
    "restoring old radios", "the rules of curling", "planting a herb garden", "how vaccines are tested",
    "moving to a smaller flat", "the invention of the zipper", "night trains", "reading a topographic map",
    "how owls hunt in the dark", "making soap at home", "the game of go", "why leaves change their color",
    "writing a speech for a wedding", "repairing a bicycle chain", "the life of Ada Lovelace", "saving water at home",
    "how coral reefs grow", "choosing a first telescope", "the smell of rain", "a walking tour of a harbor town",
    "folding paper cranes", "how pianos are tuned", "training for a first marathon", "the color blue in art",
    "storing vegetables for the winter",
)  # fmt: skip
_TEMPLATES = (
    "Explain {} to a curious child.",
    "What are three common mistakes about {}?",
    "Write a short blog post about {}.",
    "I have one free weekend. How do I get started with {}?",
    "Summarize the most important facts about {} in five bullet points.",
    "Write a friendly dialogue between two neighbors about {}.",
    "What surprised people most about {}?",
    "Give me a checklist for {}.",
    "Compare {} with something from everyday life.",
    "Write a short poem about {}.",
    "What tools or materials do I need for {}?",
    "Tell me a story that begins with {}.",
    "Which books or places would you suggest to learn more about {}?",
    "Write a polite email that invites colleagues to a talk on {}.",
    "Argue for and against spending time on {}.",
    "How has {} changed over the last hundred years?",
    "Invent a quiz question about {} and give the answer.",
    "Describe {} in exactly three sentences.",
    "What would an expert on {} do on a normal day?",
    "Give a title and an outline for a lecture on {}.",
    "What is the science behind {}?",
)


def build() -> Workload:
    """336 traffic prompts and 42 probe prompts."""
    kept, held = cross(_TOPICS, _TEMPLATES, _HELD_OUT)
    return Workload(name="chat", traffic=_make_prompts(kept), probe=_make_prompts(held))


def _make_prompts(pairs: tuple[tuple[str, str], ...]) -> tuple[Prompt, ...]:
    prompts = [
        Prompt(key=text, messages=chat(None, (), text), max_tokens=_MAX_TOKENS)
        for text in (template.format(topic) for topic, template in pairs)
    ]
    return shuffled(prompts, lambda prompt: prompt.key)
