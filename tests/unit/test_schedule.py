from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from itertools import pairwise

import pytest

from cordee.core.errors import UsageError
from cordee.twin.cluster import Cluster
from cordee.twin.schedule import Action, Progress, Rule, Schedule, When, choose
from harness import DEADLINE_S

EXAMPLE = """# every form of the language
at step 30: cut b; at step 60: mend b

AT 12.5 S: Set b LINK=10Mbit cpu=0.1   # a comment; not: a statement
every 15 s: kill random worker;; every 20 steps: pause Random Worker ;
at step 40 : kill worker 2 and resume worker 0 AND cut Gamma2
at step 50: kill host b
at 500ms: cut b
at 2 min: mend b
every 1 step: pause worker 1
at 0 s: cut and1
"""
MEANT = (
    (When(30), [Action("cut", "b")]),
    (When(60), [Action("mend", "b")]),
    (When(12.5, timed=True), [Action("set", "b", settings=(("link", "10mbit"), ("cpu", "0.1")))]),
    (When(15, timed=True, every=True), [Action("kill")]),
    (When(20, every=True), [Action("pause")]),
    (When(40), [Action("kill", worker=2), Action("resume", worker=0), Action("cut", "gamma2")]),
    (When(50), [Action("kill", "b")]),
    (When(0.5, timed=True), [Action("cut", "b")]),
    (When(120, timed=True), [Action("mend", "b")]),
    (When(1, every=True), [Action("pause", worker=1)]),
    (When(0, timed=True), [Action("cut", "and1")]),
)


def test_every_form_is_read() -> None:
    read = Schedule.parse(EXAMPLE)
    assert [(rule.when, list(rule.actions)) for rule in read.rules] == list(MEANT)
    assert Schedule.parse(EXAMPLE.replace("\n", "\r\n")) == read


@pytest.mark.parametrize("text", ["", "\n", " ; ;# nothing: at all"])
def test_a_schedule_may_be_empty(text: str) -> None:
    empty = Schedule.parse(text)
    assert empty == Schedule() and str(empty) == ""
    assert empty.due(Progress(), Progress(100, 1e6)) == []


def test_the_text_of_a_schedule_is_plain() -> None:
    assert str(Schedule.parse(EXAMPLE)).split("\n") == [
        "at step 30: cut b",
        "at step 60: mend b",
        "at 12.5 s: set b link=10mbit cpu=0.1",
        "every 15 s: kill random worker",
        "every 20 steps: pause random worker",
        "at step 40: kill worker 2 and resume worker 0 and cut gamma2",
        "at step 50: kill host b",
        "at 0.5 s: cut b",
        "at 120 s: mend b",
        "every 1 step: pause worker 1",
        "at 0 s: cut and1",
    ]


def some_when(draw: random.Random) -> When:
    """Of any kind; times with fractions of a power of two, which arithmetic does not round."""
    kinds = (
        When(draw.randint(1, 40)),
        When(draw.randint(0, 160) / 8, timed=True),
        When(draw.randint(1, 9), every=True),
        When(draw.randint(1, 40) / 8, timed=True, every=True),
    )
    return draw.choice(kinds)


def some_action(draw: random.Random) -> Action:
    host = draw.choice(["a", "b", "node7"])
    actions = (
        Action("cut", host),
        Action("mend", host),
        Action(
            "set",
            host,
            settings=draw.choice([(("cpu", "0.1"),), (("link", "1gbit"),), (("cpu", "max"), ("link", "800kbit"))]),
        ),
        Action("kill", worker=draw.choice([None, 0, 3])),
        Action("pause", worker=draw.choice([None, 12])),
        Action("resume", worker=draw.randint(0, 9)),
        Action("kill", host),
    )
    return draw.choice(actions)


def some_schedule(draw: random.Random) -> Schedule:
    rules = (Rule(some_when(draw), tuple(some_action(draw) for _ in range(draw.randint(1, 3)))) for _ in range(6))
    return Schedule(tuple(rules))


def test_what_is_printed_is_read_back() -> None:
    draw = random.Random(0)
    for _ in range(200):
        schedule = some_schedule(draw)
        assert Schedule.parse(str(schedule)) == schedule
        assert Schedule.parse(str(schedule).replace("\n", ";").upper().lower()) == schedule
    other = Schedule.parse("at step 1: cut b")
    assert other != Schedule.parse("at step 2: cut b") and other != Schedule.parse("at step 1: mend b")


@pytest.mark.parametrize("seconds", [0.1 + 0.2, 1e-7, 1 / 3, 1e22, 123456789.125, 5e-324])
def test_any_time_is_printed_so_that_it_is_read_back(seconds: float) -> None:
    schedule = Schedule(
        (
            Rule(When(seconds, timed=True), (Action("cut", "b"),)),
            Rule(When(seconds, timed=True, every=True), (Action("cut", "b"),)),
        )
    )
    assert Schedule.parse(str(schedule)) == schedule


MOMENT = "is no moment: expected `at step 30`, `at 12.5 s`, `every 20 steps` or `every 15 s`"
ACTION = "is no action: expected `cut HOST`, `mend HOST`, `set HOST link=RATE cpu=SHARE`"
REFUSED = [
    ("at step 3: cutt b", f"line 1, 'at step 3: cutt b': 'cutt b' {ACTION}"),
    ("at step 3: cut b\nat step 3: cutt b", f"line 2, 'at step 3: cutt b': 'cutt b' {ACTION}"),
    ("at step 3: cut b; at step 4: xyz b", f"line 1, 'at step 4: xyz b': 'xyz b' {ACTION}"),
    ("at step 3: cut b and\nat step 4: mend b", f"line 1, 'at step 3: cut b and': 'cut b and' {ACTION}"),
    ("\n# when?\nwhen step 3: cut b", f"line 3, 'when step 3: cut b': 'when step 3' {MOMENT}"),
    *(
        (f"{when}: cut b", f"line 1, '{when}: cut b': '{when}' {MOMENT}")
        for when in (
            *("", "at", "evry 3 s", "at soon", "at step", "at step 0", "at step 2.5", "at step -2", "at step 3 s"),
            *(f"at step {'9' * 5000}", "at 5", "every 5", "at 5 steps", "at 5h", "every 5 days", "every step 5"),
            *("every 0 steps", "every 1.5 steps", "at -5 s", "at 1e308 min", "every -5 s", "every 0 s", "every 0.0ms"),
            *("at nan s", "at inf s"),
        )
    ),
    ("at step 3 cut b", "line 1, 'at step 3 cut b': expected `WHEN: ACTION`, such as `at step 30: cut b`"),
    ("at step 3", "line 1, 'at step 3': expected `WHEN: ACTION`"),
    *(
        (f"at step 3:{action}", f"{action.strip()!r} {ACTION}")
        for action in (
            *(
                "",
                ": cut b",
                " cut b at step 6: mend b",
                " kill worker 2 3",
                " kill random worker 2",
                " cut",
                " cut b, c",
            ),
            *(
                " cut b, c",
                " kill host",
                " set b",
                " set b cpu = 1",
                " kill b",
                " pause host b",
                " kill random host",
                " resume",
            ),
            *(" resume random worker", " resume worker", " kill worker -1", " kill worker x"),
        )
    ),
    ("at step 3: set b and cut b", f"'set b' {ACTION}"),
    ("at step 3: set b lnk=10mbit", "lnk cannot be set while a host is up; link and cpu can"),
    ("at step 3: set b cpu=1 workers=2", "workers cannot be set while a host is up; link and cpu can"),
    ("at step 3: set b cpu=", "cpu=: expected cores' worth of processor time"),
    ("at step 3: set b link=fast", "link=fast: expected a speed"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[text[:40] for text, _ in REFUSED])
def test_nonsense_is_refused_with_its_statement(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        Schedule.parse(text)
    assert str(refused.value).startswith("schedule, line ")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("at step 3: cut d", "'at step 3: cut d': there is no host 'd'; the hosts are a, beta."),
        ("\nat step 3: cut a; at step 4: mend bet", "'at step 4: mend bet': there is no host 'bet'; the hosts"),
        ("at step 3: kill host d", "'at step 3: kill host d': there is no host 'd'"),
        ("at step 3: set d cpu=1", "'at step 3: set d cpu=1': there is no host 'd'"),
        ("at step 3: cut a and kill worker 3", "there is no worker 3: expected one from 0 to 2"),
        ("at step 3: resume worker 30", "there is no worker 30: expected one from 0 to 2"),
    ],
)
def test_what_the_cluster_does_not_have_is_refused_with_its_statement(text: str, message: str) -> None:
    schedule = Schedule.parse(text)
    with pytest.raises(UsageError) as refused:
        schedule.check(Cluster.parse("name=a, name=beta workers=2"))
    assert str(refused.value).startswith("schedule, 'at ") and message in str(refused.value)


def test_what_the_cluster_has_passes() -> None:
    text = "at step 3: set a cpu=0.5 link=10mbit and kill worker 2; every 1 s: kill random worker and cut b and mend b"
    Schedule.parse(text).check(Cluster.parse("1, workers=2"))
    Schedule().check(Cluster(()))


def expected_due(schedule: Schedule, before: Progress, now: Progress) -> list[Action]:
    """By looking at every moment there is, in whole numbers: steps, and eighths of a second."""
    found = []
    for number, rule in enumerate(schedule.rules):
        when = rule.when
        if not when.timed:
            start, end = before.step, now.step
            moments = range(when.number, end + 1, when.number) if when.every else [when.number]
            hit = [moment for moment in moments if start < moment <= end]
        else:
            start, end, eighths = (int(8 * seconds) for seconds in (before.seconds, now.seconds, when.number))
            moments = range(eighths, end + 1, eighths) if when.every else [eighths]
            # 0 s is due at the first look after it, and who slept does a thing once.
            hit = [moment for moment in moments if start < moment <= end or (moment == start == 0 < end)][:1]
        found += [(Fraction(moment - start, end - start), number, rule.actions) for moment in hit]
    return [action for *_, actions in sorted(found, key=lambda one: one[:2]) for action in actions]


def test_what_is_due_is_what_a_look_at_every_moment_finds() -> None:
    draw = random.Random(1)
    seen: Counter[int] = Counter()
    for _ in range(300):
        schedule = some_schedule(draw)
        before = Progress()
        while before.step < 45:
            pace = draw.choice([0, 1, 1, 3, 12])
            now = Progress(before.step + draw.randint(0, pace), before.seconds + draw.randint(0, 8 * pace) / 8)
            due = schedule.due(before, now)
            assert due == expected_due(schedule, before, now), (str(schedule), before, now)
            seen[min(len(due), 5)] += 1
            before = now
    assert min(seen[count] for count in range(6)) > 50, "looks with nothing, little and much due must all occur"


def words_due(text: str, *looks: Progress) -> list[str]:
    """What is due at each look, as text."""
    schedule = Schedule.parse(text)
    return [" ".join(map(str, schedule.due(*pair))) for pair in pairwise(looks)]


def test_each_moment_belongs_to_one_look() -> None:
    assert words_due("at step 3: cut b", *(Progress(step) for step in (0, 2, 3, 3, 4))) == ["", "cut b", "", ""]
    times = [Progress(0, seconds) for seconds in (0.0, 2.5, 3.0, 3.0, 9.0)]
    assert words_due("at 3 s: cut b", *times) == ["", "cut b", "", ""]
    assert words_due("at 0 s: cut b", *times) == ["cut b", "", "", ""]
    assert words_due("at 0 s: cut b", Progress(0, 0.0), Progress(0, 0.0), Progress(0, 0.1)) == ["", "cut b"]
    assert words_due("every 1 s: cut b; every 5 steps: cut c", Progress(9, 9.5), Progress(2, 1.0)) == [""]


def test_who_slept_does_each_step_but_a_period_only_once() -> None:
    slept = Progress(60, 60.0)
    assert words_due("every 15 s: kill random worker", Progress(), slept) == ["kill random worker"]
    assert words_due("every 20 steps: cut b", Progress(), slept) == ["cut b cut b cut b"]
    assert words_due("every 15 s: cut b", Progress(), Progress(0, 59), Progress(0, 60)) == ["cut b", "cut b"]


def test_order_is_that_of_moments_then_of_the_text() -> None:
    text = "at step 8: cut h; at 3 s: cut c; at step 2: cut b; at 8 s: mend h; every 4 steps: cut d and cut e"
    assert words_due(text, Progress(), Progress(8, 8.0)) == ["cut b cut c cut d cut e cut h mend h cut d cut e"]


def test_nothing_is_due_before_training_began() -> None:
    early = [Progress(0, seconds) for seconds in (-20.0, -0.5, 0.0, 1.0, 15.0)]
    assert words_due("every 15 s: cut b", *early) == ["", "", "", "cut b"]
    assert words_due("at 0 s: cut b", *early) == ["", "", "cut b", ""]


@pytest.mark.parametrize("period", [0.1, 0.3, 1 / 3, 0.7, 1.1, 2.5])
@pytest.mark.parametrize("start", [0.0, 1e-3])
def test_looks_at_the_very_moments_miss_nothing_and_do_nothing_twice(period: float, start: float) -> None:
    when = When(period, timed=True, every=True)
    schedule = Schedule((Rule(when, (Action("cut", "b"),)),))
    before, fired = Progress(0, start), 0
    for _ in range(1000):
        moment = when.after(before.seconds)
        assert moment is not None and 0 < moment - before.seconds <= period * (1 + 1e-12)
        now = Progress(0, moment)
        fired += len(schedule.due(before, now))
        before = now
    assert fired == 1000 and before.seconds == 1000 * period


def test_a_period_shorter_than_a_clock_can_tell_is_due_at_every_look() -> None:
    assert words_due("every 1e-300 s: cut b", *(Progress(0, seconds) for seconds in (1e9, 2e9, 3e9))) == ["cut b"] * 2


def test_the_random_choice_is_the_same_everywhere() -> None:
    # Drawn once and written down: another machine or version must draw the same.
    assert [choose(0, count, range(10)) for count in range(12)] == [9, 2, 9, 1, 5, 2, 3, 5, 3, 1, 3, 3]
    assert choose(5, 7, [3, 1, 2]) == choose(5, 7, [1, 2, 3])
    assert choose(5, 7, [4]) == 4


def test_the_random_choice_is_spread_evenly() -> None:
    candidates = [0, 2, 3, 5, 8, 9, 11]
    drawn = [choose(3, count, candidates) for count in range(14_000)]
    often = Counter(drawn)
    assert set(often) == set(candidates)
    # 2,000 each; the deviation of such a count is 41.
    assert all(abs(count - 2000) < 4 * 41 for count in often.values())
    same = sum(one == other for one, other in pairwise(drawn))
    assert abs(same - 2000) < 4 * 41, "a choice does not lean on the one before"
    other = [choose(4, count, candidates) for count in range(14_000)]
    assert abs(sum(one == another for one, another in zip(drawn, other, strict=True)) - 2000) < 4 * 41


def test_a_schedule_needs_no_torch() -> None:
    look = "import sys, cordee.twin.schedule; sys.exit(bool({'torch', 'numpy', 'rich', 'yaml'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", look], timeout=DEADLINE_S).returncode == 0
