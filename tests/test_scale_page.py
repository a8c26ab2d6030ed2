"""docs/scale.md shows what was measured, as it is now."""

from __future__ import annotations

from benchmarks import scale_page


def test_scale_page_equals_the_output_of_its_script() -> None:
    page = scale_page.PAGE.read_text(encoding="utf-8")
    assert page == scale_page.rewritten(page), "run python -m benchmarks.scale_page"
