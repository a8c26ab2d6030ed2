"""The tables of methods in the docs are those of the result file."""

from __future__ import annotations

import pytest
from benchmarks.methods_page import BENCHMARKS, METHODS, PAGES, SUMMARY, benchmarks, measured, read


def test_methods_page_tables_equal_the_result_file() -> None:
    rows, page = read(SUMMARY), BENCHMARKS.read_text(encoding="utf-8")
    assert benchmarks(page, rows) == page, "run: python -m benchmarks.methods_page"


@pytest.mark.parametrize("method", METHODS)
def test_methods_page_each_method_has_its_rows(method: str) -> None:
    rows, page = read(SUMMARY), (PAGES / f"{method}.md").read_text(encoding="utf-8")
    assert measured(page, method, rows) == page, "run: python -m benchmarks.methods_page"
    some = rows["gtsrb32", "extended-data", method]["cross_mean"]
    assert f"{float(some):.3f}" in page


def test_methods_page_without_its_tables_raises_with_the_page() -> None:
    with pytest.raises(SystemExit, match="0 tables of extended-class"):
        benchmarks("no table", read(SUMMARY))
    with pytest.raises(SystemExit, match=r"bct\.md: 0 sections"):
        measured("# bct\n", "bct", read(SUMMARY))
