"""docs/scale.md shows what was measured, as it is now."""

from __future__ import annotations

from benchmarks import scale_page


def test_the_page_is_what_its_script_writes() -> None:
    page = scale_page.PAGE.read_text(encoding="utf-8")
    assert page == scale_page.rewritten(page), "run python -m benchmarks.scale_page"
