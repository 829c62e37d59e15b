"""The pages of charts: well-formed, complete, and nothing in them comes from elsewhere."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from tidegate.spark.progress.charts import (
    Chart,
    Lane,
    Lanes,
    Line,
    Mark,
    Span,
    Table,
    axis_ticks,
    page,
    rate,
    running_total,
)

SVG = "{http://www.w3.org/2000/svg}"
LAG = Chart("Lag", "records", [Line("behind <latest>", [(0, 400), (5, 100)]), Line("read", [], steps=True)])
WORK = Lanes("Who did what", [Lane("node 1", [Span("up", 0, 4), Span("down", 4, 10)], [1, 2, 3])], "a commit")


def drawings(html: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(found) for found in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]


def texts(drawing: ElementTree.Element) -> list[str]:
    return ["".join(element.itertext()) for element in drawing.iter(f"{SVG}text")]


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (10, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (57, [0, 10, 20, 30, 40, 50]),
        (0.4, [0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4]),
        (0, [0]),
    ],
)
def test_an_axis_has_round_ticks_up_to_its_end(end: float, expected: list[float]) -> None:
    assert axis_ticks(end) == pytest.approx(expected)


def test_a_rate_has_the_sum_of_each_bin_and_ends_at_zero() -> None:
    assert rate([(0.1, 5), (0.4, 5), (1.2, 3)], 0.5) == [(0, 20), (0.5, 0), (1.0, 6), (1.5, 0)]
    assert rate([], 0.5) == []


def test_a_running_total_is_in_the_order_of_time() -> None:
    assert running_total([(2, 3), (1, 4)]) == [(0, 0), (1, 4), (2, 7)]


def test_all_charts_share_the_axis_of_time_and_the_marks() -> None:
    lag, work = drawings(page("Lag", "", [LAG, WORK], [Mark("node 1 killed", 4)]))
    seconds = [str(number) for number in range(11)]
    for drawing in (lag, work):
        said = texts(drawing)
        assert set(seconds) <= set(said)
        assert "seconds" in said
        marks = [each.text for each in drawing.iter(f"{SVG}title") if each.text == "node 1 killed"]
        assert len(marks) == 1


def test_a_span_and_a_line_stand_where_their_times_are() -> None:
    lag, work = drawings(page("Lag", "", [LAG, WORK]))
    up, down = list(work.iter(f"{SVG}rect"))
    assert float(up.get("x", "")) + float(up.get("width", "")) == pytest.approx(
        float(down.get("x", "")), abs=0.2
    )
    assert float(down.get("width", "")) == pytest.approx(1.5 * float(up.get("width", "")), abs=0.2)
    (start_x, start_y), (end_x, end_y) = (
        map(float, pair.split(","))
        for pair in re.findall(r"[\d.]+,[\d.]+", next(lag.iter(f"{SVG}path")).get("d", ""))
    )
    assert start_x < end_x
    assert start_y < end_y  # the lag shrinks; y counts from the top


def test_steps_keep_a_value_until_the_next_point() -> None:
    chart = Chart("Read", "records", [Line("read", [(0, 0), (1, 10), (2, 20)], steps=True)])
    (drawing,) = drawings(page("Read", "", [chart]))
    path = next(drawing.iter(f"{SVG}path")).get("d", "")
    assert re.fullmatch(r"M[\d.]+,[\d.]+(H[\d.]+V[\d.]+){2}", path)


def test_a_line_of_very_many_points_is_thinned_and_keeps_its_end() -> None:
    points = [(float(number), float(number)) for number in range(10_001)]
    (drawing,) = drawings(page("Long", "", [Chart("Long", "records", [Line("all", points)])]))
    found = re.findall(r"[\d.]+,[\d.]+", next(drawing.iter(f"{SVG}path")).get("d", ""))
    assert len(found) < 2100
    assert float(found[-1].split(",")[0]) == pytest.approx(1080 - 24)


def test_the_page_asks_for_nothing_from_elsewhere_and_escapes_what_it_is_given() -> None:
    table = Table("Checks <b>", ("name", "found"), [("lost & found", "<0>")])
    html = page("A <title>", "said & done", [LAG, WORK], [Mark("kill & <b>", 1)], [table])
    assert "<script" not in html
    assert re.findall(r"(?:src|href)=|url\(|@import", html) == []
    assert set(re.findall(r"https?://[^\"']+", html)) == {"http://www.w3.org/2000/svg"}
    for raw in (
        "A &lt;title&gt;",
        "said &amp; done",
        "behind &lt;latest&gt;",
        "lost &amp; found",
        "&lt;0&gt;",
    ):
        assert raw in html
    assert "<b>" not in html


def test_the_legend_names_each_line_each_kind_of_span_and_the_ticks_once() -> None:
    html = page("Legend", "", [LAG, WORK])
    named = re.findall(r"<li><i[^>]*></i>(.*?)</li>", html)
    assert named == ["behind &lt;latest&gt;", "read", "a commit", "up", "down"]


def test_a_page_without_any_moment_is_a_page() -> None:
    html = page(
        "Nothing", "", [Chart("None", "records", [Line("none", [])]), Lanes("None", [Lane("node 1")])]
    )
    assert len(drawings(html)) == 2
