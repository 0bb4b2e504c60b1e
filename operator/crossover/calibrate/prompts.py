"""Texts to send: sentences of everyday tasks, never twice the same beginning, so that no prefix cache answers for the GPU.

Acceptance depends on what is written, so measured acceptance is that of these texts unless the caller brings own ones.
"""

from __future__ import annotations

import random

TASKS = (
    "Write a report on {topic} for a reader who has never heard of it.",
    "Compare two ways of {topic}, with the costs of each.",
    "Explain step by step how a small company would begin with {topic}.",
    "Write the documentation of a program that helps with {topic}, with examples.",
    "Summarise the following notes on {topic} and list what is still open.",
    "Answer a customer who complains about {topic}, and propose a remedy.",
)
TOPICS = (
    "storing solar power over night",
    "planning bus routes",
    "repairing old bridges",
    "teaching children to swim",
    "sorting parcels by machine",
    "forecasting the price of wheat",
    "keeping bees on a roof",
    "testing software before a release",
    "translating legal contracts",
    "moving a library to another building",
)
NOTES = (
    "The first attempt failed because the supplier delivered two weeks late and nobody had planned for that.",
    "Measurements were taken every morning at seven and written into a table by hand.",
    "In the second year the cost fell by a third, mostly because the work could be done in one shift.",
    "Several people asked whether the same result could be had with less effort.",
    "The function returns the number of items that passed the check and the list of those that did not.",
    "If the temperature rises above the limit, the pump is switched off and an alarm is sent.",
    "There is a short letter from the mayor, who would like to see the results before the summer.",
    "All of the parts can be bought in an ordinary shop, except for the valve.",
    "The team met on Tuesday, agreed on three questions and left the fourth for later.",
    "A student noticed that the numbers of the two tables differ by exactly one row.",
    "Before that, the road had been closed for most of the winter.",
    "It is not clear who pays for the insurance when the machine stands still.",
)


def prompt(words: int, draw: random.Random) -> str:
    """About ``words`` words: a number that makes it unique, notes, and a task at the end."""
    topic = draw.choice(TOPICS)
    task = draw.choice(TASKS).format(topic=topic)
    text = [f"{draw.randrange(1 << 40):x}:"]
    rest = words - 1 - len(task.split())
    while rest > 0:
        note = draw.choice(NOTES).split()[:rest]
        text.append(" ".join(note))
        rest -= len(note)
    if words > len(task.split()):
        text.append(task)
    else:
        text.append(" ".join(task.split()[: max(0, words - 1)]))
    return " ".join(part for part in text if part)
