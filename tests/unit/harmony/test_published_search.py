"""The published search, reproduced: candidates, what wins, with which estimate."""

from statistics import fmean

import pytest

from tests.unit.harmony.toy_model import profile
from workbench.methods.harmony.published.packing import sizes_of
from workbench.methods.harmony.published.search import Candidate, SearchSettings, candidates, search
from workbench.methods.harmony.published.tasks import Mode
from workbench.methods.harmony.published.timing import Server
from workbench.published import harmony_plans

BALANCED = {
    "forward_rules": ("reuse", "balanced_time"),
    "backward_rules": ("balanced_time",),
}
"""What the shipped scripts search; else all default rules."""
LARGE, BERT, GPT = "bert_large_seq512", "bert_96_seq512", "gpt2_xl"


GOLDEN = (
    (BERT, "DP", 16, 12, 10.710),
    (BERT, "PP", 16, 25, 7.229),
    (BERT, "DP", 64, 25, 22.642),
    (BERT, "PP", 64, 42, 19.056),
    (BERT, "DP", 256, 42, 71.097),
    (BERT, "PP", 256, 50, 68.995),
    (GPT, "DP", 16, 10, 18.342),
    (GPT, "PP", 16, 17, 13.303),
    (GPT, "DP", 64, 17, 48.508),
    (GPT, "PP", 64, 17, 45.281),
    (GPT, "DP", 256, 17, 169.172),
    (GPT, "PP", 256, 17, 172.516),
)
"""Model, mode, minibatch, candidates and seconds of the shipped scripts' search on 4 GPUs."""
GOLDEN_ON_TWO = (
    (LARGE, "DP", 32, 78, 4.608),
    (LARGE, "PP", 32, 121, 4.399),
    (BERT, "DP", 32, 24, 19.421),
    (BERT, "PP", 32, 32, 17.874),
    (GPT, "DP", 32, 19, 43.927),
    (GPT, "PP", 32, 19, 42.298),
)
"""The same of the stored results on 2 GPUs."""


def smaller(rows):
    """Rows like these, those of 256 samples for who asks for all (conftest.py)."""
    return [
        pytest.param(*row, marks=[pytest.mark.thorough] if row[2] == 256 else []) for row in rows
    ]


def found_by(profile_of, name, mode, minibatch, *, gpus=4, memory_cap=9e9, **options):
    settings = SearchSettings(
        mode=Mode(mode), gpus=gpus, minibatch=minibatch, memory_cap=memory_cap, **options
    )
    return search(profile_of(name), settings, Server())


@pytest.mark.parametrize(("name", "mode", "minibatch", "candidates", "seconds"), smaller(GOLDEN))
def test_balanced_rules(profile_of, name, mode, minibatch, candidates, seconds):
    """Published, every candidate is simulated; leaving hopeless ones out finds the same one."""
    found = found_by(profile_of, name, mode, minibatch, **BALANCED)
    everything = found_by(profile_of, name, mode, minibatch, top=None, **BALANCED)
    assert found.candidates == everything.candidates == candidates
    assert everything.simulated == len(everything.best) == candidates
    assert found.best == everything.best[:1]
    assert found.best[0].estimate.seconds == pytest.approx(seconds, abs=1e-3)


@pytest.mark.parametrize(
    ("figure", "gpus", "golden"), [("10", 4, GOLDEN), ("stored", 2, GOLDEN_ON_TWO)]
)
def test_kept_plans_of_this_search_are_the_golden_ones(figure, gpus, golden):
    """What it found when they were made: asked without the profiles, which are not kept here."""
    kept = harmony_plans.kept(figure)
    kept = kept[(kept["planner"] == harmony_plans.PUBLISHED) & (kept["ranks"] == gpus)]
    for name, mode, minibatch, count, seconds in golden:
        place = (kept["model"] == name) & (kept["method"] == f"harmony-{mode.lower()}")
        (row,) = kept[place & (kept["minibatch"] == minibatch)].itertuples()
        assert row.candidates == count
        assert row.estimate_s == pytest.approx(seconds, abs=1e-3)


def test_fewer_are_simulated_than_there_are(profile_of):
    """Half at most, in the settings of table 1."""
    for name in (BERT, GPT):
        for rules in (BALANCED, {}):
            found = found_by(profile_of, name, "PP", 64, **rules)
            assert 1 <= found.simulated <= found.candidates / 2


@pytest.mark.parametrize("rules", [BALANCED, {}], ids=["balanced", "all default"])
@pytest.mark.parametrize("name", [BERT, GPT])
def test_replicas_have_the_candidates_of_their_share(profile_of, name, rules):
    """Sizes that divide every GPU's share are those of a pipeline with so many samples."""

    def count(mode: str, minibatch: int) -> int:
        given = {"mode": Mode(mode), "gpus": 4, "minibatch": minibatch, "memory_cap": 9e9}
        return len(list(candidates(profile_of(name), SearchSettings(**given, **rules))))

    for minibatch in (64, 256):
        assert count("DP", minibatch) == count("PP", minibatch // 4) > 1


@pytest.mark.parametrize(
    ("name", "mode", "minibatch", "candidates", "seconds"),
    smaller([
        (BERT, "DP", 16, 71, 10.512),
        (BERT, "PP", 16, 164, 7.220),
        (BERT, "DP", 64, None, 22.583),
        (BERT, "PP", 64, 293, 18.619),
        (BERT, "DP", 256, None, 70.907),
        (BERT, "PP", 256, 359, 66.338),
        (GPT, "DP", 16, None, 18.167),
        (GPT, "DP", 64, None, 48.382),
        (GPT, "DP", 256, None, 169.045),
        (GPT, "PP", 16, 136, 12.300),
        (GPT, "PP", 64, 136, 42.595),
        (GPT, "PP", 256, 136, 163.776),
    ]),
)  # fmt: skip
def test_all_default_rules(profile_of, name, mode, minibatch, candidates, seconds):
    found = found_by(profile_of, name, mode, minibatch)
    if candidates is not None:
        assert found.candidates == candidates
    assert found.best[0].estimate.seconds == pytest.approx(seconds, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "mode", "minibatch", "candidates", "seconds"),
    smaller([
        (BERT, "DP", 16, 12, 9.150),
        (BERT, "DP", 64, 25, 20.355),
        (BERT, "PP", 16, 25, 7.073),
        (BERT, "PP", 64, 42, 17.876),
        (GPT, "DP", 16, 10, 15.884),
        (GPT, "DP", 64, 17, 44.889),
        (GPT, "DP", 256, 17, 161.049),
        (GPT, "PP", 16, 17, 12.327),
        (GPT, "PP", 64, 17, 43.368),
        (GPT, "PP", 256, 17, 166.749),
    ]),
)  # fmt: skip
def test_with_prefetching(profile_of, name, mode, minibatch, candidates, seconds):
    """Which changes what a candidate takes, not which there are."""
    found = found_by(profile_of, name, mode, minibatch, prefetch=True, **BALANCED)
    assert found.candidates == candidates
    assert found.best[0].estimate.seconds == pytest.approx(seconds, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "mode", "compute", "idle", "mib", "u", "forward", "backward"),
    [
        (BERT, "PP", 80, (5, 3), 8009, (16, 16), 24, (*[None] * 24, 7)),
        (BERT, "DP", 69, (0, 0), 8169, (8, 8), 5, (8, 7, 8, 7, 7, 8, 7, 8, 7, 7, 8, 7, 11)),
        (GPT, "PP", 86, (6, 3), 7997, (4, 4), 10, (*[3] * 16, 4)),
        (GPT, "DP", 80, (0, 0), 8421, (2, 2), 5, (6, 6, 5, 6, 5, 6, 5, 6, 7)),
    ],
)
def test_what_table_1_finds(profile_of, name, mode, compute, idle, mib, u, forward, backward):
    best = found_by(profile_of, name, mode, 64, **BALANCED).best[0]
    chosen, found = best.candidate.configuration, best.estimate
    assert (chosen.u_forward, chosen.u_backward) == u
    assert len(chosen.forward) == forward
    sizes = sizes_of(chosen.backward)
    assert len(sizes) == len(backward)
    assert all(size in (None, own) for own, size in zip(sizes, backward, strict=True))
    assert round(100 * found.compute_share) == compute
    assert (round(100 * max(found.idle)), round(100 * fmean(found.idle))) == idle
    assert round(max(found.memory_bytes) / 2**20) == mib


def test_forward_packs_of_table_1(profile_of):
    found = {
        (name, mode): sizes_of(
            found_by(profile_of, name, mode, 64, **BALANCED).best[0].candidate.configuration.forward
        )
        for name in (BERT, GPT)
        for mode in ("PP", "DP")
    }
    assert found[BERT, "PP"][:6] == (4, 4, 4, 4, 4, 3)
    assert found[GPT, "PP"] == (5, 5, 5, 4, 5, 5, 4, 5, 5, 5)
    assert found[BERT, "DP"] == (18, 18, 17, 18, 18)
    assert found[GPT, "DP"] == (9, 9, 9, 9, 9)


def test_stored_search_results(profile_of, rows_of):
    """Published summaries of minibatch 32 on 2 GPUs: the winner and its packing rules."""
    golden = rows_of("golden_d32_n2.csv")
    assert [(row["model"], row["mode"], int(row["candidates"])) for row in golden] == [
        (name, mode, count) for name, mode, _, count, _ in GOLDEN_ON_TWO
    ]
    for row in golden:
        rules = {} if row["packers_searched"].startswith("all") else BALANCED
        found = found_by(
            profile_of,
            row["model"],
            row["mode"],
            32,
            gpus=2,
            memory_cap=int(row["memory_cap_bytes"]),
            rank_fit_normally=True,  # one GPU alone can train BERT-Large, in 5.861 s
            **rules,
        )
        best = found.best[0]
        chosen = best.candidate.configuration
        assert found.candidates == int(row["candidates"]), row
        assert best.estimate.seconds == pytest.approx(float(row["estimated_s"]), abs=1e-3)
        assert (chosen.u_forward, chosen.u_backward) == (int(row["u_fwd"]), int(row["u_bwd"]))
        assert " ".join(map(str, sizes_of(chosen.forward))) == row["pack_sizes_fwd"]
        assert " ".join(map(str, sizes_of(chosen.backward))) == row["pack_sizes_bwd"]
        assert best.candidate.forward_rule == row["packer_fwd"]
        assert best.candidate.backward_rule == row["packer_bwd"]


def test_bert_large_with_the_rules_of_the_shipped_script(profile_of):
    for mode, seconds in (("DP", 4.783), ("PP", 4.829)):
        how = {"gpus": 2, "memory_cap": 10 * 2**30, "rank_fit_normally": True, **BALANCED}
        found = found_by(profile_of, LARGE, mode, 32, **how)
        assert found.best[0].estimate.seconds == pytest.approx(seconds, abs=1e-3)


def test_the_stored_ten_best_of_bert_large(profile_of):
    """Minibatch 600 on 4 GPUs: the list is that of prefetching, and of `balanced_time` alone.

    Its first two are plans for a single GPU, ranked by a thousandth of their time.
    """
    settings = {
        "gpus": 4,
        "memory_cap": 10 * 2**30,
        "forward_rules": ("balanced_time",),
        "backward_rules": ("balanced_time",),
        "prefetch": True,
    }
    found = found_by(profile_of, LARGE, "PP", 600, top=10, **settings)
    seconds = [each.estimate.seconds for each in found.best]
    published = [
        174.183, 250.294, 37.770, 37.976, 38.042, 38.118, 38.239, 38.287, 38.379, 38.427,
    ]  # fmt: skip
    assert seconds == pytest.approx(published, abs=1e-3)
    third = found.best[2]
    chosen = third.candidate.configuration
    assert (chosen.u_forward, chosen.u_backward) == (120, 50)
    assert sizes_of(chosen.forward) == (1,) * 24
    assert sizes_of(chosen.backward) == (1,) * 24 + (4,)
    assert round(100 * third.estimate.compute_share) == 96
    assert round(100 * max(third.estimate.idle)) == 2
    assert max(third.estimate.memory_bytes) / 2**30 == pytest.approx(6.42, abs=0.005)
    normally = found_by(profile_of, LARGE, "PP", 600, rank_fit_normally=True, **settings)
    assert normally.best[0].candidate == third.candidate


@pytest.mark.parametrize(
    ("name", "memory_cap"),
    [(BERT, 9e9), (GPT, 9e9), ("vgg416", 10 * 2**30), ("resnet1026", 10 * 2**30)],
)
def test_each_model_of_table_1_is_searched(profile_of, name, memory_cap, answered):
    """With all default rules, of process time; the published search takes about a minute."""
    profile_of(name)
    with answered(f"harmony: {name} of table 1 searched", 20, "process"):
        assert found_by(profile_of, name, "PP", 64, memory_cap=memory_cap).best


def settings(**changes) -> SearchSettings:
    given = {"mode": Mode.PP, "gpus": 2, "minibatch": 12, "memory_cap": 2000.0}
    return SearchSettings(**(given | changes))


def sizes(**changes) -> set[tuple[int, int]]:
    return {
        (each.configuration.u_forward, each.configuration.u_backward)
        for each in candidates(profile(), settings(**changes))
    }


def test_sizes_divide_every_share():
    divisors = {1, 2, 3, 4, 6, 12}
    assert {u for pair in sizes() for u in pair} == divisors
    assert all(forward >= backward for forward, backward in sizes())
    assert {u for pair in sizes(mode=Mode.DP, gpus=2, minibatch=13) for u in pair} == {1}


def test_a_model_that_fits_is_one_pack_without_forward_tasks():
    found = list(candidates(profile(), settings(memory_cap=1e9)))
    assert all(len(each.configuration.backward) == 1 for each in found)
    assert {each.forward_rule for each in found} == {None}
    assert all(each.configuration.forward == () for each in found)


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("mode", Mode)
def test_leaving_out_hopeless_candidates_changes_no_answer(mode, prefetch):
    for memory_cap in (1200.0, 2000.0, 4000.0):
        given = {"mode": mode, "memory_cap": memory_cap, "prefetch": prefetch}
        everything = search(profile(), settings(top=None, **given), Server())
        assert everything.simulated == everything.candidates
        for top in (1, 2, 5, 20):
            found = search(profile(), settings(top=top, **given), Server())
            assert found.best == everything.best[:top]
            assert found.candidates == everything.candidates
            assert found.simulated <= found.candidates
            if (mode, top) == (Mode.PP, 1):
                assert found.simulated < found.candidates


def test_what_cannot_be_searched_is_refused():
    with pytest.raises(ValueError, match="no packs of made up fit in 100 B with a minibatch of"):
        search(profile(), settings(memory_cap=100.0), Server())
    with pytest.raises(ValueError, match="unknown packing rules best"):
        settings(forward_rules=("best",))
    with pytest.raises(ValueError, match="unknown packing rules reuse"):
        settings(backward_rules=("reuse",))
    with pytest.raises(ValueError, match="gpus must be above 0, not 0"):
        settings(gpus=0)
    with pytest.raises(ValueError, match="top must be 1 or more"):
        settings(top=0)
    with pytest.raises(ValueError, match="12 samples leaves some of 13 GPUs"):
        search(profile(), settings(mode=Mode.DP, gpus=13), Server())


def test_the_order_of_candidates_is_the_published_one():
    first = next(candidates(profile(), settings()))
    assert isinstance(first, Candidate)
    assert (first.backward_rule, first.configuration.u_backward) == ("greedy_reverse_addx", 1)
