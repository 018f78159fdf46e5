"""Recorded drafting, read back: answers of the target and what turbo and an adapter draft at each slot."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from safetensors import safe_open

from tests.bench import result

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

DIRECTORY = result.ROOT / ".adaptive" / "choice" / "recordings"
MISSING = (
    "{} is missing. Make it with `python -m deploy.models.recordings jobs`, and `record` on a GPU "
    "(see deploy/models/README.md)"
)


@dataclasses.dataclass(frozen=True)
class Recording:
    """One request.

    Attributes:
        prompt: Prompt ids.
        answer: Answer ids.
        drafts: Per arm and slot the chain drafted after answer[: slot + 1]; its first token stands for
            answer[slot + 1].
        log_odds: Of each of those tokens.
    """

    prompt: Sequence[int]
    answer: Sequence[int]
    drafts: Mapping[str, Sequence[Sequence[int]]]
    log_odds: Mapping[str, Sequence[Sequence[float]]]

    @property
    def slots(self) -> int:
        """Places where a verify step can begin."""
        return len(self.answer) - 1


def read(workload: str, side: str, temperature: float, directory: Path = DIRECTORY) -> list[Recording]:
    """The recorded requests of one side of a workload's split.

    Raises:
        SystemExit: they have not been recorded.
    """
    path = directory / f"{workload}.safetensors"
    if not path.is_file():
        raise SystemExit(MISSING.format(path))
    return list(_read(path, f"{side}/{temperature}"))


def _read(path: Path, part: str) -> Iterator[Recording]:
    with safe_open(path, framework="np") as file:
        tokens = file.get_tensor(f"{part}/tokens").tolist()
        shape = file.get_tensor(f"{part}/shape").tolist()
        arms = ("turbo", "adapter")
        drafts = {arm: file.get_tensor(f"{part}/{arm}.tokens").tolist() for arm in arms}
        odds = {arm: file.get_tensor(f"{part}/{arm}.log_odds").tolist() for arm in arms}
    at = row = 0
    for length, start in shape:
        slots = max(length - start - 1, 0)
        yield Recording(
            prompt=tokens[at : at + start],
            answer=tokens[at + start : at + length],
            drafts={arm: drafts[arm][row : row + slots] for arm in arms},
            log_odds={arm: odds[arm][row : row + slots] for arm in arms},
        )
        at, row = at + length, row + slots
