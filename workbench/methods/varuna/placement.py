"""Which rank works on which stage and copy of a pipeline, as text: ``0,4;1,5;2,6;3,7;``.

Ranks of a stage are joined by commas, stages ended by semicolons. Neighbours in a pipeline are
neighbours among ranks (Athlur et al., EuroSys 2022), so that most messages stay within a host.
"""

from __future__ import annotations

EXAMPLE = "0,4;1,5;2,6;3,7;"


def stages_of(text: str) -> list[list[int]]:
    """Stage -> its ranks, by copy. Raises ValueError for a map that is none: of another form, with
    stages of unequal copies, a rank that is missing, or one that stands twice."""
    try:
        found = [[int(rank) for rank in stage.split(",")] for stage in text.strip(";").split(";")]
    except ValueError:
        raise ValueError(f"stage_to_rank_map is {text!r}; it must be as in {EXAMPLE}") from None
    if len({len(ranks) for ranks in found}) > 1:
        counts = ", ".join(str(len(ranks)) for ranks in found)
        raise ValueError(f"the stages of {text!r} have {counts} ranks; all have equally many")
    ranks = sorted(rank for ranks in found for rank in ranks)
    for rank in range(len(ranks)):
        if (times := ranks.count(rank)) != 1:
            how = "is missing in" if times == 0 else f"stands {times} times in"
            raise ValueError(
                f"rank {rank} {how} {text!r}; the map has each of {len(ranks)} ranks once"
            )
    return found


def get_varuna_config(stage_to_rank_map: str) -> tuple[int, int]:
    """Stages, and copies of each.

    >>> get_varuna_config("0,4;1,5;2,6;3,7;")
    (4, 2)
    """
    stages = stages_of(stage_to_rank_map)
    return len(stages), len(stages[0])


def get_this_rank_config_varuna(stage_to_rank_map: str, rank: int) -> tuple[int, int]:
    """Stage and copy of a rank. Raises ValueError for one that is not in the map.

    >>> get_this_rank_config_varuna("0,4;1,5;2,6;3,7;", 5)
    (1, 1)
    """
    for stage, ranks in enumerate(stages_of(stage_to_rank_map)):
        if rank in ranks:
            return stage, ranks.index(rank)
    raise ValueError(f"rank {rank} is not in {stage_to_rank_map!r}")
