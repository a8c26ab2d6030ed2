"""What `import midspan as ms` offers: the names are pinned, documented and short to print."""

from __future__ import annotations

import doctest
import importlib
import inspect
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import midspan as ms
from midspan import client

MODULES = {
    "bridges",
    "data",
    "encoders",
    "errors",
    "evaluation",
    "gallery",
    "losses",
    "methods",
    "upgrade",
}
CLASSES = {"Client", "Embeddings", "Gallery", "Space", "Upgrade"}
FUNCTIONS = {
    "compare",
    "evaluate",
    "fit_bridge",
    "gate",
    "load_bridge",
    "load_encoder",
    "train",
}
EXAMPLES = sorted(CLASSES | FUNCTIONS | set(ms.errors.__all__))


def test_public_names_equal_the_documented_list() -> None:
    assert set(ms.__all__) == MODULES | CLASSES | FUNCTIONS | set(ms.errors.__all__) | {
        "__version__"
    }
    for name in ms.__all__:
        assert getattr(ms, name) is not None
    assert dir(ms) == sorted(ms.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ms.nothing


def test_every_error_is_exported_and_in_the_tree() -> None:
    found = {name for name, one in vars(ms.errors).items() if inspect.isclass(one)}
    assert found == set(ms.errors.__all__)
    assert all(issubclass(getattr(ms, name), ms.MidspanError) for name in found)
    assert all(name in (ms.errors.__doc__ or "") for name in found)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_every_name_of_a_module_resolves_and_has_a_docstring(module: str) -> None:
    loaded = getattr(ms, module)
    assert isinstance(loaded, ModuleType)
    for name in loaded.__all__:
        value = getattr(loaded, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, f"midspan.{module}.{name} has no docstring"


def run_examples(value: object, name: str) -> doctest.TestResults:
    finder = doctest.DocTestFinder(recurse=False)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for test in finder.find(value, name, globs={}):
            runner.run(test)
    return runner.summarize(verbose=False)


def module_classes(module: str) -> list[tuple[str, Any]]:
    loaded = getattr(ms, module)
    found = {name: getattr(loaded, name) for name in loaded.__all__}
    base = {"losses": "RecognitionLoss", "methods": "Method"}[module]
    return [
        (name, value)
        for name, value in found.items()
        if inspect.isclass(value) and issubclass(value, found[base]) and name != "Method"
    ]


# What needs no example of its own: values that a function of the module returns, and protocols.
RETURNED = {
    "bridges": {"Comparison", "Selection"},
    "client": set(client.__all__) - {"Client", "UpgradeVerbs"},  # answers of a service
    "data": {"ImageSource", "Skipped"},
    "encoders": set(),
    "evaluation": {
        *("ChainSummary", "Comparison", "Curve", "Flips", "Fusion", "Gains", "Group", "Identified"),
        *("KFold", "PScores", "Retrieval", "Roc", "Templates", "Verification"),
    },
    "gallery": {
        *("AuditEvent", "CopyReport", "Counts", "Failure", "Hit", "IndexStatus", "Info", "Item"),
        *("State", "Task", "Verification"),
    },
    "losses": set(),
    "methods": set(),
    "training": {"RunResult", "RunSummary"},
    "upgrade": {
        *("Check", "Finished", "Forgotten", "GateResult", "ImageEncoder", "Plan", "Reason"),
        *("Record", "Report", "RolledBack", "Status"),
    },
}


def exported(module: str) -> list[tuple[str, Any]]:
    """Classes and functions in `__all__` of a module."""
    loaded = importlib.import_module(f"midspan.{module}")
    values = [(name, getattr(loaded, name)) for name in loaded.__all__]
    return [(name, one) for name, one in values if inspect.isclass(one) or inspect.isfunction(one)]


@pytest.mark.slow
@pytest.mark.parametrize("module", RETURNED)
def test_examples_of_a_module_run(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in exported(module):
        if getattr(ms, name, None) is value:
            continue  # test_example_of_a_public_name_runs
        result = run_examples(value, name)
        assert result.failed == 0, capsys.readouterr().out
        assert (result.attempted == 0) == (name in RETURNED[module]), f"{name} has no example"


@pytest.mark.parametrize("module", RETURNED)
def test_arguments_of_what_a_module_exports_are_explained(module: str) -> None:
    for name, value in exported(module):
        assert value.__doc__, f"midspan.{module}.{name} has no docstring"
        text, signature = inspect.getdoc(value) or "", inspect.signature(value)
        constructed = module in ("bridges", "encoders") and name not in RETURNED[module]
        if inspect.isfunction(value) or constructed:
            missing = [one for one in signature.parameters if f"    {one}: " not in text]
            assert missing == [], name
        if inspect.isfunction(value):
            assert "Returns:" in text or signature.return_annotation in ("None", None), name


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_of_a_public_name_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_examples(getattr(ms, name), name)
    assert result.attempted > 0, f"{name} has no example"
    assert result.failed == 0, capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_docstring_of_a_function_names_every_argument(name: str) -> None:
    function = getattr(ms, name)
    text = inspect.getdoc(function) or ""
    for section in ("Args:", "Returns:", "Raises:", "Example:"):
        assert section in text, f"{name}: no {section}"
    missing = [one for one in inspect.signature(function).parameters if f"    {one}: " not in text]
    assert not missing, f"{name} does not explain {missing}"


def public_methods() -> list[tuple[str, Any]]:
    """Every method that users call on the five classes, as "Gallery.search"."""
    found = []
    for owner in sorted(CLASSES):
        cls = getattr(ms, owner)
        for name, value in inspect.getmembers(cls, callable):
            if not name.startswith("_"):
                found.append((f"{owner}.{name}", value))
    return found


@pytest.mark.parametrize(
    ("name", "method"), public_methods(), ids=[name for name, _ in public_methods()]
)
def test_docstring_of_a_method_explains_arguments_and_result(name: str, method: Any) -> None:
    text = inspect.getdoc(method) or ""
    assert text, f"{name} has no docstring"
    signature = inspect.signature(method)
    arguments = [one for one in signature.parameters if one != "self"]
    assert [one for one in arguments if f"    {one}: " not in text] == [], name
    assert not arguments or "Args:" in text
    returns = signature.return_annotation
    assert returns in ("None", None) or "Returns:" in text, name


def test_properties_have_docstrings_and_examples_of_methods_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for owner in sorted(CLASSES):
        for name, value in vars(getattr(ms, owner)).items():
            if isinstance(value, property) and not name.startswith("_"):
                assert value.__doc__, f"{owner}.{name}"
    ran = [run_examples(method, name) for name, method in public_methods()]
    assert sum(one.failed for one in ran) == 0, capsys.readouterr().out
    assert sum(one.attempted > 0 for one in ran) >= 4


@pytest.mark.parametrize("module", ["losses", "methods"])
def test_every_setting_of_a_loss_or_method_is_explained(module: str) -> None:
    for name, value in module_classes(module):
        text = inspect.getdoc(value) or ""
        settings = inspect.signature(value).parameters.values()
        named = [one.name for one in settings if one.kind is one.KEYWORD_ONLY]
        assert [one for one in named if f"    {one}: " not in text] == [], name


def labelled(name: str, seed: int) -> ms.Embeddings:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(10), 6)
    noise = 0.2 * rng.normal(size=(60, 10))
    vectors = (np.eye(10)[labels] + noise).astype(np.float32)
    return ms.Embeddings(
        np.arange(60).astype(np.str_), vectors, ms.Space(name, 10), {"labels": labels}
    )


def test_results_print_in_one_line_and_as_html(tmp_path: Path) -> None:
    old, new = labelled("old", 0), labelled("new", 1)
    report = ms.compare(old=old, new=new, bootstrap=20)
    verdict = ms.gate(before=old, after=new)
    with ms.Gallery.create("memory:", old.space) as gallery:
        gallery.add(old)
        plan = ms.Upgrade.plan(gallery, to=new, mode="both")
        upgrade = ms.Upgrade.start(gallery, to=new, mode="both")
        results: list[Any] = [old, report, verdict, plan, ms.evaluate(old), upgrade.status()]
        for one in [*results, gallery, upgrade]:
            assert len(repr(one)) < 250, type(one)
            assert "\n" not in repr(one)
        for shown in results[1:]:
            assert shown._repr_html_().startswith("<table>")
    assert "<script" not in report._repr_html_()
    page = report.to_html(tmp_path / "report.html")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_every_value_that_users_meet_prints_in_one_short_line() -> None:
    from midspan.encoders import build_encoder
    from midspan.upgrade import Report

    old, new = labelled("old", 0), labelled("new", 1)
    bridge = ms.fit_bridge(old, new)
    compared = ms.bridges.compare_bridges(old, new, candidates=("procrustes", "ridge"))
    encoder = build_encoder(backbone="small-cnn", dim=8, name="tiny")
    unfitted = ms.bridges.Ridge()
    with ms.Gallery.create("memory:", old.space) as gallery:
        gallery.add(old, payloads=[{"text": "x" * 500}] * 60)
        hit = gallery.search(old[:1], k=1)[0][0]
        upgrade = ms.Upgrade.start(gallery, to=new, mode="both")
        report = upgrade.run(new)
        shown: list[Any] = [old.space, bridge, unfitted, compared, encoder, gallery, hit, report]
        shown += [gallery.info(), gallery.verify(), gallery.state, gallery.get("0")]
        shown += [ms.bridges.fit_auto(old, new), upgrade.finish(), upgrade.rollback()]
        for one in shown:
            assert len(repr(one)) < 280, repr(one)
            assert "\n" not in repr(one)
            if hasattr(one, "_repr_html_"):
                assert one._repr_html_().startswith("<table>")
        assert repr(bridge) == "Ridge(alpha=None, seed=0; old → new, 60 pairs)"
        assert repr(unfitted) == "Ridge(alpha=None, seed=0)"
        assert repr(gallery) == f"Gallery('memory:': 60 items in {old.space})"
        assert repr(hit).startswith("Hit('0', score=1.0000, space='old'")
        assert isinstance(report, Report)
        assert "60 written" in repr(report)
        assert "ridge" in compared._repr_html_()
    assert repr(gallery) == "Gallery('memory:', closed)"
    assert repr(encoder).startswith("Encoder('tiny': small-cnn, ")


def test_comparison_as_a_frame_has_one_row_for_each_query() -> None:
    pytest.importorskip("pandas")
    report = ms.compare(old=labelled("old", 0), new=labelled("new", 1), bootstrap=20)
    frame = report.to_frame()
    assert frame.shape[0] == 60
    assert frame["cross"].mean() == pytest.approx(report.cross)
    assert frame.loc["7", "label"] == "1"


def test_npy_file_needs_the_name_of_its_space(tmp_path: Path) -> None:
    np.save(tmp_path / "old.npy", np.eye(3, dtype=np.float32))
    with pytest.raises(ms.SpaceMissing, match="does not say which space"):
        ms.Embeddings.load(tmp_path / "old.npy")
    loaded = ms.Embeddings.load(tmp_path / "old.npy", space="clip")
    assert (loaded.ids.tolist(), loaded.space.name) == (["0", "1", "2"], "clip")
    np.save(tmp_path / "bad.npy", np.zeros(4))
    with pytest.raises(ms.FormatError, match=r"expected an array of floats \(N, D\)"):
        ms.Embeddings.load(tmp_path / "bad.npy", space="clip")
