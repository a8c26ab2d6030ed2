from __future__ import annotations

from collections.abc import Callable
from xml.etree import ElementTree

import numpy as np
import pytest

from midspan.evaluation.curves import Curve
from midspan.evaluation.verification import Roc, roc
from midspan.reports.matrix_plot import matrix_plot
from midspan.reports.plots import Dot, curve_plot, line_plot, roc_plot, score_dots
from midspan.reports.projection_plot import projection_plot, shared_limits

SVG = "{http://www.w3.org/2000/svg}"


def parse(plot: str) -> ElementTree.Element:
    return ElementTree.fromstring(plot)


def group(root: ElementTree.Element, name: str) -> ElementTree.Element:
    groups = [e for e in root.iter(f"{SVG}g") if e.attrib.get("id") == name]
    assert len(groups) == 1, name
    return groups[0]


def markers(element: ElementTree.Element) -> list[tuple[float, float]]:
    uses = element.iter(f"{SVG}use")
    return [(float(e.attrib["x"]), float(e.attrib["y"])) for e in uses]


def texts(root: ElementTree.Element) -> list[str]:
    return [e.text or "" for e in root.iter(f"{SVG}text")]


def dots_plot() -> str:
    dots = [
        Dot("old on its own", 0.5, (0.4, 0.6), hollow=True),
        Dot("new <on> old", 0.75),
        Dot("no value", float("nan")),
    ]
    return score_dots(
        dots, reference=0.5, reference_name="old self", metric="mAP", title="the scores"
    )


def test_score_dots_positions_are_the_values() -> None:
    root = parse(dots_plot())
    ((old_x, _),) = markers(group(root, "scores-dot-0"))
    ((new_x, _),) = markers(group(root, "scores-dot-1"))
    assert new_x > old_x
    assert not [e for e in root.iter(f"{SVG}g") if e.attrib.get("id") == "scores-dot-2"]
    shown = texts(root)
    for text in ("old on its own", "new <on> old", "0.500", "0.750", "old self 0.500", "mAP"):
        assert text in shown
    # Positions are the values: the ticks of the axis say where 0 and 1 are.
    ticks = {e.text: float(e.attrib["x"]) for e in root.iter(f"{SVG}text")}
    assert np.isclose(old_x, (ticks["0.0"] + ticks["1.0"]) / 2, atol=0.01)
    assert np.isclose(new_x, ticks["0.0"] + 0.75 * (ticks["1.0"] - ticks["0.0"]), atol=0.01)


def projection() -> str:
    rng = np.random.default_rng(0)
    old, new = rng.normal(size=(2, 9, 2))
    classes = np.array([0, 0, 0, 0, 1, 1, 1, 9, 9])  # more classes than hues wrap around
    limits = shared_limits(old, new)
    return projection_plot(old, new, classes, limits=limits, title="spaces", name="space")


def test_projection_plot_has_every_item_twice() -> None:
    root = parse(projection())
    for number, count in ((0, 4), (1, 3), (9, 2)):
        for kind in ("old", "new"):
            assert len(markers(group(root, f"space-{kind}-{number}"))) == count
    (ways,) = group(root, "space-ways").iter(f"{SVG}path")
    assert ways.attrib["d"].count("M") == 9  # one hairline an item
    assert ways.attrib["d"].count("L") == 9


def test_projection_panels_share_their_axes() -> None:
    old = np.array([[0.0, 0.0], [1.0, 2.0]])
    limits = shared_limits(old, old + 5)
    left, right, bottom, top = limits
    assert (left < 0, right > 6, bottom < 0, top > 7) == (True,) * 4
    places = [
        markers(
            group(
                parse(
                    projection_plot(old, new, np.zeros(2, int), limits=limits, title="", name="p")
                ),
                "p-old-0",
            )
        )
        for new in (old, old + 5)
    ]
    assert places[0] == places[1]


def test_projection_plot_of_equal_points_is_drawn() -> None:
    same = np.zeros((3, 2))
    plot = projection_plot(
        same, same, np.zeros(3, int), limits=shared_limits(same), title="", name="p"
    )
    assert len(markers(group(parse(plot), "p-old-0"))) == 3


def rocs() -> dict[str, Roc]:
    rng = np.random.default_rng(0)
    genuine, impostor = rng.normal(2, 1, size=300), rng.normal(0, 1, size=2000)
    return {"old": roc(genuine, impostor), "new & better": roc(genuine + 1, impostor)}


def test_roc_plot_on_a_log_axis() -> None:
    root = parse(roc_plot(rocs(), title="ROC"))
    assert {"old", "new & better", "10⁻³", "10⁻²", "10⁰"} <= set(texts(root))
    ticks = {e.text: float(e.attrib["x"]) for e in root.iter(f"{SVG}text")}
    step = ticks["10⁻¹"] - ticks["10⁻²"]
    assert np.isclose(ticks["10⁰"] - ticks["10⁻¹"], step, atol=0.05)
    for number in (0, 1):
        (path,) = group(root, f"roc-line-{number}").iter(f"{SVG}path")
        assert "nan" not in path.attrib["d"].lower()


def test_roc_plot_without_errors_is_drawn() -> None:
    perfect = roc(np.array([2.0, 3.0]), np.array([0.0, 1.0]))
    root = parse(roc_plot({"perfect": perfect}, title="ROC"))
    assert group(root, "roc-line-0") is not None


def lines() -> str:
    x = [0.0, 0.5, 1.0]
    return line_plot(
        {"random": (x, [0.5, 0.6, 0.8]), "by $doubt": (x, [0.5, 0.75, 0.8])},
        x_name="refreshed",
        y_name="mAP",
        title="curves",
        name="curve",
        reference=("old self", 0.45),
    )


def test_line_plot_positions_follow_the_values() -> None:
    root = parse(lines())
    assert {"random", "by $doubt", "refreshed", "mAP", "old self 0.450"} <= set(texts(root))
    first, second = (markers(group(root, f"curve-line-{n}")) for n in (0, 1))
    assert len(first) == len(second) == 3
    assert [x for x, _ in first] == [x for x, _ in second]
    assert second[1][1] < first[1][1]  # higher value, further up


def curve(metric: str = "map") -> Curve:
    values = np.array([0.5, 0.6, 0.8])
    return Curve(
        metric=metric,
        fractions=np.array([0.0, 0.5, 1.0]),
        values=values,
        per_query=values[:, None],
        negative_flips=np.zeros(3),
        positive_flips=np.zeros(3),
    )


def test_curve_plot_positions_follow_the_values() -> None:
    root = parse(curve_plot({"random": curve()}, title="backfill", reference=("old self", 0.55)))
    assert {"mAP", "part of the gallery with new vectors", "old self 0.550"} <= set(texts(root))
    places = markers(group(root, "curve-line-0"))
    assert len(places) == 3
    (x0, y0), (x1, y1), (x2, y2) = places
    assert np.isclose(x1 - x0, x2 - x1, atol=0.01)
    assert np.isclose((y1 - y2) / (y0 - y2), 2 / 3, atol=0.001)


def test_curve_plot_of_two_metrics_raises() -> None:
    with pytest.raises(ValueError, match="Recall@1 and mAP"):
        curve_plot({"a": curve(), "b": curve("recall@1")}, title="t")


def test_line_plot_of_one_line_has_no_legend() -> None:
    plot = line_plot({"only": ([0, 1], [0, 1])}, x_name="x", y_name="y", title="t", name="n")
    assert "only" not in texts(parse(plot))


def matrix() -> str:
    values = np.array([[0.7, 0.1, np.nan], [0.72, 0.8, 0.3], [0.69, 0.78, 0.85]])
    return matrix_plot(values, ["phi1", "phi2", "漢字"], title="matrix")


def test_matrix_plot_shows_every_number_and_marks_below_the_diagonal() -> None:
    root = parse(matrix())
    shown = texts(root)
    for text in ("0.700", "0.100", "0.300", "0.720 ✓", "0.800", "0.690 ✗", "0.780 ✗", "0.850"):
        assert shown.count(text) == 1, text
    assert shown.count("漢字") == 2
    cells = [e for e in root.iter(f"{SVG}g") if "-cell-" in e.attrib.get("id", "")]
    assert len(cells) == 8  # one was not measured


def test_matrix_plot_without_a_name_for_each_encoder_raises() -> None:
    with pytest.raises(ValueError, match="expected a matrix"):
        matrix_plot(np.zeros((2, 3)), ["a", "b"], title="t")


def test_matrix_plot_of_zeros_is_drawn() -> None:
    assert texts(parse(matrix_plot(np.zeros((1, 1)), ["a"], title="t"))).count("0.000") == 1


@pytest.mark.parametrize(
    "draw", [dots_plot, projection, lambda: roc_plot(rocs(), title="ROC"), lines, matrix]
)
def test_plots_are_deterministic(draw: Callable[[], str]) -> None:
    assert draw() == draw()
