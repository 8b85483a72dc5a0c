"""What may pass is tried again, at growing distances, and not for ever."""

from __future__ import annotations

import pytest

from eval_core.errors import UsageError
from pipelines import retry
from pipelines.errors import ApiError, TransientError
from pipelines.retry import persist


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.naps: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(retry, "time", clock)
    return clock


class Flaky:
    """An operation that meets the given errors, then gives an answer."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


def test_an_answer_ends_it(clock: Clock) -> None:
    flaky = Flaky(*[TransientError("away")] * 9)
    assert persist(flaky, patience=1000) == "answer"
    assert flaky.calls == 10
    assert all(nap <= 30 for nap in clock.naps)
    assert clock.naps[0] <= 0.5
    assert clock.naps[-1] >= 20


def test_a_servers_wish_is_obeyed(clock: Clock) -> None:
    assert persist(Flaky(TransientError("busy", 17.0)), patience=60) == "answer"
    assert clock.naps == [17.0]


def test_patience_ends(clock: Clock) -> None:
    with pytest.raises(ApiError, match=r"away; tried for 1\d s") as caught:
        persist(Flaky(*[TransientError("away")] * 1000), patience=10)
    assert not isinstance(caught.value, TransientError)
    assert clock.now == pytest.approx(10, abs=0.1)


def test_a_wish_beyond_all_patience_is_not_waited_for(clock: Clock) -> None:
    with pytest.raises(ApiError, match="busy"):
        persist(Flaky(TransientError("busy", 3600.0)), patience=10)
    assert clock.naps == []


def test_the_point_to_give_up_comes_before_patience(clock: Clock) -> None:
    with pytest.raises(ApiError):
        persist(Flaky(*[TransientError("away")] * 1000), patience=1000, give_up_at=5.0)
    assert clock.now == pytest.approx(5, abs=0.1)


@pytest.mark.parametrize("error", [ApiError("refused"), UsageError("wrong")])
def test_what_can_not_pass_is_not_tried_again(clock: Clock, error: Exception) -> None:
    flaky = Flaky(error)
    with pytest.raises(type(error)):
        persist(flaky, patience=1000)
    assert flaky.calls == 1


def test_each_reason_is_said_once(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    persist(Flaky(*[TransientError("away")] * 3, *[TransientError("busy")] * 2), patience=1000)
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(";")[0] for line in said] == ["away", "busy"]
