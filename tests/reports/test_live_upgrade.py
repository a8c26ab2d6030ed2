"""The live upgrade on the demo's page: its own numbers, and the truth when something went wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from midspan.errors import EvaluationError
from midspan.reports import demo_page
from midspan.reports.live_upgrade import milliseconds, upgrade_plot, upgrade_tiles, upgrade_words
from tests.reports.demo_results import demo_result, live_upgrade
from tests.reports.html_walk import Walk, check_page


def page_of(folder: Path, **changes: object) -> Walk:
    result = demo_result(upgrade=live_upgrade(**changes))
    return check_page(demo_page(result, folder / "page.html").read_text(encoding="utf-8"))


def test_demo_page_shows_the_live_upgrade(tmp_path: Path) -> None:
    walk = page_of(tmp_path)
    text = " ".join(walk.text.split())
    assert "A live upgrade, and back" in text
    assert "1,234 pictures in one file" in text
    assert "4,321" in text
    assert "mAP@300 of 121 queries" in text
    assert "2.0 s, 617 pictures a second" in text
    assert "old encoder 0.701" in walk.by_tag["text"]  # of the plot
    assert "brought to one scale" in text
    commands = "\n".join(walk.by_tag["code"])
    assert "midspan upgrade start demo/gallery.midspan --to demo/compatible/test.npz" in commands


def test_demo_page_without_an_upgrade_omits_it(tmp_path: Path) -> None:
    page = demo_page(demo_result(), tmp_path / "page.html").read_text(encoding="utf-8")
    assert "A live upgrade" not in check_page(page).text


def test_live_upgrade_with_plain_scores_does_not_mention_calibration(tmp_path: Path) -> None:
    assert "brought to one scale" not in page_of(tmp_path, mixing="plain").text


def test_upgrade_tiles_show_searches_and_rollback() -> None:
    searches, answer, back = upgrade_tiles(live_upgrade())
    assert (searches.value, searches.note) == ("4,321", "✓ 0 failed")
    assert (answer.value, answer.note) == ("4.2 ms", "half are faster; 99 of 100 within 57 ms")
    assert (back.value, back.note) == ("12 ms", "✓ 200 of 200 answers as before the start")


def test_upgrade_tiles_show_failed_searches() -> None:
    searches, _, back = upgrade_tiles(live_upgrade(failed=3, same=198))
    assert searches.note == "✗ 3 failed"
    assert back.note == "✗ 198 of 200 answers as before the start"


def test_live_upgrade_dip_below_the_old_service_is_stated() -> None:
    assert "At no point was the search worse" in upgrade_words(live_upgrade())
    words = upgrade_words(live_upgrade(values=(0.71, 0.69, 0.8)))
    assert "with 50 % new vectors it had 0.690, where the old encoder had 0.701" in words


def test_upgrade_plot_has_all_points() -> None:
    plot = upgrade_plot(live_upgrade(values=(0.7123, 0.7654, 0.8351)))
    assert plot.startswith("<svg")
    assert "from 0.712 to 0.835" in plot


def test_live_upgrade_unequal_values_and_fractions_raise() -> None:
    with pytest.raises(EvaluationError, match="got 2 and 3"):
        live_upgrade(values=(0.1, 0.2))


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0042, "4.2 ms"), (0.25, "250 ms"), (1.5, "1.5 s")]
)
def test_milliseconds_formats_short_times(seconds: float, text: str) -> None:
    assert milliseconds(seconds) == text
