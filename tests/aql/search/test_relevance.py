"""Tests of the ranking: similarity, frequency, recency and success."""

from __future__ import annotations

import pytest

from interlock.aql.search.searcher import LexicalSearcher, SearchWeights, estimate_tokens, prefill
from interlock.aql.search.usage import HALF_LIFE_S, NEVER, Usage
from tests.aql.search.search_catalogs import SMALL, names, operation_catalog
from tests.support.clock import ManualClock

TWINS = {
    "one": [("send_report", "Send a report")],
    "two": [("send_report", "Send a report")],
}


@pytest.mark.spec("ST-4.4.2-10")
def test_ranks_by_success_at_equal_similarity() -> None:
    usage = Usage(clock=ManualClock())
    for _ in range(6):
        usage.record("one.send_report", "", False)
        usage.record("two.send_report", "", True)
    shelf = operation_catalog(TWINS)
    plain = LexicalSearcher(lambda: shelf, usage, SearchWeights(1.0, 0.0, 0.0, 0.0))
    one, other = plain.search("send a report", None, 2)
    assert one.score == pytest.approx(other.score)
    raised = LexicalSearcher(lambda: shelf, usage, SearchWeights(1.0, 0.0, 0.0, 0.5))
    assert names(raised.search("send a report", None, 2)) == ["two.send_report", "one.send_report"]


@pytest.mark.parametrize(
    "weights",
    [SearchWeights(1.0, 0.5, 0.0, 0.0), SearchWeights(1.0, 0.0, 0.5, 0.0)],
    ids=["frequency", "recency"],
)
def test_ranks_by_frequency_and_recency(weights: SearchWeights) -> None:
    clock = ManualClock()
    usage = Usage(clock=clock)
    usage.record("one.send_report", "", True)
    clock.now += 3 * HALF_LIFE_S
    for _ in range(5):
        usage.record("two.send_report", "", True)
    shelf = operation_catalog(TWINS)
    found = LexicalSearcher(lambda: shelf, usage, weights).search("send a report", None, 2)
    assert names(found) == ["two.send_report", "one.send_report"]


def test_usage_does_not_raise_unrelated_operations() -> None:
    usage = Usage(clock=ManualClock())
    for _ in range(1_000):
        usage.record("files.read_file", "", True)
    shelf = operation_catalog(SMALL)
    searcher = LexicalSearcher(lambda: shelf, usage, SearchWeights(0.2, 1.0, 1.0, 1.0))
    assert names(searcher.search("merge the pull request", None, 3))[0] == (
        "github.merge_pull_request"
    )


def test_weighs_own_calls_over_calls_of_others() -> None:
    usage = Usage(clock=ManualClock())
    usage.record("one.send_report", "clerk", True)
    usage.record("two.send_report", "guard", True)
    shelf = operation_catalog(TWINS)
    searcher = LexicalSearcher(lambda: shelf, usage)
    assert names(searcher.search("send a report", None, 1, caller="clerk")) == ["one.send_report"]
    assert names(searcher.search("send a report", None, 1, caller="guard")) == ["two.send_report"]


def test_old_calls_decay_and_clock_may_go_back() -> None:
    clock = ManualClock()
    usage = Usage(clock=clock)
    usage.record("a.b", "", True)
    before = usage.score_of("a.b")
    clock.now += HALF_LIFE_S
    after = usage.score_of("a.b")
    assert after.recency == pytest.approx(0.5)
    assert after.frequency < before.frequency
    clock.now -= 10 * HALF_LIFE_S
    assert 0 <= usage.score_of("a.b").recency <= 1
    assert usage.score_of("nobody.knows") == NEVER


@pytest.mark.parametrize("caller", ["", "clerk"])
def test_summed_calls_count_like_single_calls(caller: str) -> None:
    clock = ManualClock()
    single, together = Usage(clock=clock), Usage(clock=clock)
    for usage in (single, together):
        usage.record("a.b", caller, False)
    clock.now += HALF_LIFE_S
    for good, times in ((True, 3), (False, 2)):
        for _ in range(times):
            single.record("a.b", caller, good)
        together.record("a.b", caller, good, times)
    assert together.score_of("a.b", caller) == pytest.approx(single.score_of("a.b", caller))
    assert together.take_changes() == single.take_changes()


@pytest.mark.spec("ST-4.4.2-11")
def test_prefill_keeps_relevant_operations_within_token_limit() -> None:
    shelf = operation_catalog(SMALL)
    hits = LexicalSearcher(lambda: shelf).search("delete a message or a branch", None, 20)
    chosen = prefill(hits, 0.5, 1_000)
    assert chosen
    assert all(hit.score >= 0.5 for hit in chosen)
    assert sum(estimate_tokens(hit.operation) for hit in chosen) <= 1_000
    assert any(hit.score < 0.5 for hit in hits)
    assert prefill(hits, 0.5, 1) == []
    small = prefill(hits, 0.0, 150)
    assert 0 < len(small) < len(hits)
    assert sum(estimate_tokens(hit.operation) for hit in small) <= 150
