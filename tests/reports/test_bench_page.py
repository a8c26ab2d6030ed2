"""The benchmark page: means and spreads, the criterion in words and marks, exceptions by name."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from midspan.errors import EvaluationError
from midspan.reports.bench_checks import checks
from midspan.reports.bench_page import bench_page, bench_verdict, write_bench
from midspan.reports.bench_summary import broken, joined, over_data, summarise, summarise_chains
from midspan.reports.bench_tables import block_table, ranked
from midspan.reports.tables import Cell
from tests.reports.bench_results import SCORES, document, row
from tests.reports.html_walk import Walk, check_page


def page_of(path: Path, *documents: dict[str, object]) -> Walk:
    return check_page(bench_page(documents, path / "index.html").read_text(encoding="utf-8"))


def test_summarise_gives_mean_and_spread_over_seeds() -> None:
    rows = [row("bct", seed) for seed in range(3)]
    (entry,) = summarise(rows)
    crosses = [one["cross"] for one in rows]
    assert entry.mean["cross"] == pytest.approx(np.mean(crosses))
    assert entry.spread["cross"] == pytest.approx(np.std(crosses, ddof=1))
    assert entry.seeds == entry.met == 3
    assert entry.self_share == pytest.approx(0.70 / 0.70)
    assert entry.backfill[0] == pytest.approx(np.mean(crosses))
    (single,) = summarise(rows[:1])
    assert math.isnan(single.spread["cross"])


def test_summarise_missing_values_are_left_out_of_the_mean() -> None:
    (entry,) = summarise([row("lce", 0, update_gain=None), row("lce", 1, update_gain=0.5)])
    assert entry.mean["update_gain"] == 0.5
    assert math.isnan(entry.mean["cross_forward"])


def test_summarise_p_scores_are_averaged_over_data_sets() -> None:
    entries = summarise([row("bct"), row("bct", data="signs", p_1=0.9)])
    expected = (entries[0].mean["p_1"] + 0.9) / 2
    assert over_data(entries, "p_1") == pytest.approx(expected)


def test_bench_page_best_method_is_first_and_upper_bound_is_not_ranked() -> None:
    entries = summarise([row(name) for name in SCORES])
    order = ranked(entries)
    assert set(order) == {"bct", "lce", "l2"}
    scores = {e.method: e.mean["p_1"] for e in entries}
    assert order == sorted(order, key=lambda name: -scores[name])


def test_bench_verdict_names_methods_that_meet_and_miss_the_criterion() -> None:
    verdict = bench_verdict(summarise([row(name) for name in SCORES]))
    assert not verdict.holds
    assert verdict.headline == "2 of 3 methods can search the old gallery here."
    assert "the others meet it: l2 (0 of 1)." in verdict.sentence
    good = bench_verdict(summarise([row("independent"), row("bct"), row("lce")]))
    assert good.holds
    assert good.headline.startswith("All methods can search the old gallery")


def test_bench_criterion_met_in_some_seeds_counts_as_missed() -> None:
    rows = [row("independent"), row("bct", 0), row("bct", 1, cross=0.40)]
    verdict = bench_verdict(summarise(rows))
    assert not verdict.holds
    (failed, *_) = checks(summarise(rows), [])
    assert failed.exceptions[0].endswith("(1 of 2 seeds)")


def test_bench_page_marks_the_criterion_with_text_and_colour(tmp_path: Path) -> None:
    walk = page_of(tmp_path, document([row(name, seed) for name in SCORES for seed in (0, 1)]))
    rows = {tr.split()[0]: tr for tr in walk.by_tag["tr"]}
    assert "✓ 0.555" in rows["bct"]
    assert "± 0.007" in rows["bct"]
    assert "✗ 0.455" in rows["l2"]
    assert "0.010" in rows["random"]
    assert "midspan bench --data letters.npz" in walk.text
    assert "2 seeds" in walk.text
    assert len(walk.all("svg")) == 2


def test_bench_checks_list_each_exception(tmp_path: Path) -> None:
    rows = [row(name) for name in SCORES]
    rows += [row("advbct"), row("advbct: p2s", group="ablation", p_1=0.99)]
    by_text = {check.text: check for check in checks(summarise(rows), [])}
    criterion, own, alone, ablation = by_text.values()
    assert criterion.exceptions == (
        "l2, letters extended-class: 0.450, old self 0.500 (0 of 1 seeds)",
    )
    assert {text.split(",")[0] for text in own.exceptions} == {"lce", "l2"}
    assert alone.holds
    assert ablation.exceptions[0].startswith("advbct: p2s, letters extended-class: P 1 0.990")
    walk = page_of(tmp_path, document(rows))
    assert "The terms of AdvBCT, one by one" in walk.text
    assert "l2, letters extended-class: 0.450" in walk.text


def test_bench_checks_comparable_independent_encoder_is_listed() -> None:
    (_, _, alone) = checks(summarise([row("independent", cross=0.3), row("bct")]), [])
    assert not alone.holds


def test_bench_chain_cells_below_their_self_values_are_listed(tmp_path: Path) -> None:
    fine = np.array([[0.5, np.nan, np.nan], [0.55, 0.6, np.nan], [0.56, 0.65, 0.7]])
    assert broken(fine) == ()
    fine[2, 0] = 0.45
    assert broken(fine) == ("φ3 on φ1: 0.450, below 0.500 … 0.700",)
    weaker = np.array([[0.7, np.nan], [0.65, 0.6]])  # a weaker encoder came second
    assert broken(weaker) == ()
    chain = {"data": "letters", "allocation": "extended-class", "method": "bct", "seed": 0}
    matrix = [[0.5], [0.55, 0.6], [0.45, 0.65, 0.7]]
    (entry,) = summarise_chains([{**chain, "matrix": matrix}])
    assert entry.broken == broken(fine)
    chains = [{**chain, "matrix": matrix}]
    walk = page_of(tmp_path, document([row("independent"), row("bct")], chains=chains))
    assert "φ3 on φ1: 0.450, below 0.500 … 0.700" in walk.text
    write_bench(
        [document([row("independent"), row("bct")], chains=chains)],
        page=tmp_path / "page.html",
        tables=tmp_path,
    )
    with (tmp_path / "chains.csv").open() as file:
        cells = {(r["queries"], r["gallery"]): r for r in csv.DictReader(file)}
    assert cells["phi3", "phi1"]["between_self_values"] == "False"
    assert cells["phi3", "phi2"]["between_self_values"] == "True"


def test_write_bench_writes_csv_tables(tmp_path: Path) -> None:
    rows = [row("independent"), row("bct", 0), row("bct", 1)]
    write_bench([document(rows)], page=tmp_path / "page.html", tables=tmp_path)
    with (tmp_path / "rows.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 3
    assert float(lines[1]["backfill_0"]) == pytest.approx(rows[1]["cross"])
    with (tmp_path / "summary.csv").open() as file:
        summary = {line["method"]: line for line in csv.DictReader(file)}
    assert float(summary["bct"]["cross_mean"]) == pytest.approx(0.555)
    assert summary["bct"]["seeds"] == summary["bct"]["meets_criterion"] == "2"


def test_bench_page_shows_several_data_sets_side_by_side(tmp_path: Path) -> None:
    first = document([row("independent"), row("bct")])
    second = document([row("independent", data="signs"), row("bct", data="signs")])
    walk = page_of(tmp_path, first, second)
    blocks = [a for a in walk.all("th") if a.get("class") == "block"]
    assert [a["colspan"] for a in blocks[:3]] == ["2", "2", "3"]
    assert len(walk.by_tag["pre"]) == 2


def test_bench_page_missing_method_leaves_empty_cells(tmp_path: Path) -> None:
    rows = [row("independent"), row("independent", data="signs"), row("bct")]
    walk = page_of(tmp_path, document(rows))
    assert "bct" in walk.text


def test_bench_page_lists_failures(tmp_path: Path) -> None:
    failures = {"letters · bct <b>": "DataError: no <test> split"}
    walk = page_of(tmp_path, document([row("independent"), row("lce")], failures=failures))
    assert "DataError: no <test> split" in walk.text


def test_joined_documents_of_two_metrics_raise() -> None:
    other = document([row("bct")], settings={"metric": "recall@1"})
    with pytest.raises(EvaluationError, match="make two reports"):
        joined([document([row("bct")]), other])


def test_block_table_row_of_another_length_raises() -> None:
    with pytest.raises(ValueError, match="expected 3 cells in a row, got 1"):
        block_table([], ["a", "b"], [[Cell("x")]], first="", caption="")
