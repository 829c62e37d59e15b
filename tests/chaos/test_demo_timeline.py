"""The page that the demo leaves: what its journal and its kills say stands there."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from tidegate.chaos.demo.checks import Check
from tidegate.chaos.demo.load import Committed, Journal
from tidegate.chaos.demo.timeline import Kill, Story, timeline

SVG = "{http://www.w3.org/2000/svg}"
BEGUN_AT = 1000.0


def made_page() -> str:
    journal = Journal(aborted_on_purpose=3, failures=1)
    for number in range(8):
        at = BEGUN_AT + 1 + number
        journal.sent.append((at - 0.5, 500))
        journal.committed.append(Committed(f"{number % 4}-{number}", number % 4, 1, tuple(range(500)), at))
    story = Story(BEGUN_AT, (1, 2, 3), ended_at=BEGUN_AT + 20)
    story.transformed = [(BEGUN_AT + 9, 4000)]
    story.kills = [Kill(2, "active controller", BEGUN_AT + 3, BEGUN_AT + 5, BEGUN_AT + 7)]
    story.steps = [("session", BEGUN_AT + 10, BEGUN_AT + 14)]
    story.read = [(BEGUN_AT + 16, 4000)]
    return timeline(story, journal, [Check("flights lost", 0, 4000), Check("transactions torn", 2, 8)])


def test_the_page_shows_kills_recoveries_commits_and_what_spark_read() -> None:
    html = made_page()
    flights, speed, actors = (
        ElementTree.fromstring(each) for each in re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    )
    assert len(list(flights.iter(f"{SVG}path"))) == 4
    assert len(list(speed.iter(f"{SVG}path"))) == 2
    spans = [each.findtext(f"{SVG}title") for each in actors.iter(f"{SVG}rect")]
    assert spans == [
        "up: 0.00 to 20.00 s",
        "up: 0.00 to 3.00 s",
        "down: 3.00 to 7.00 s",
        "up: 7.00 to 20.00 s",
        "up: 0.00 to 20.00 s",
        "kill to next commit of those hit: 3.00 to 5.00 s",
        "Spark: session: 10.00 to 14.00 s",
    ]
    ticks = [each.get("d", "").count("M") for each in actors.iter(f"{SVG}path")]
    assert ticks == [2, 2, 2, 2, 1]  # four producers, the transform
    assert "kill of node 2: active controller" in html
    assert "8 transactions committed, 3 aborted on purpose, 1 repeated after a kill" in html


def test_a_check_that_failed_says_so_on_the_page() -> None:
    rows = re.findall(r"<tr>(.*?)</tr>", made_page())
    assert "<td>flights lost</td><td>0</td><td>4,000</td><td>ok</td>" in rows
    assert "<td>transactions torn</td><td>2</td><td>8</td><td>FAILED</td>" in rows
