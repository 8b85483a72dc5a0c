"""What is said of a run that has no numbers yet, and of every check of one that has."""

from __future__ import annotations

from dataclasses import replace

from synthetic import make_loaded, make_plan, make_reduction, make_verification

from eval_core.reduce import Loaded
from eval_core.report.markdown import render_checks
from eval_core.report.unfinished import Planned, Unfinished, render_unfinished, summarize_unfinished
from eval_core.verify.types import Verification

HOSTILE = "<script>alert(1)</script> | `code` \u202e \x00"


def test_progress_counts_each_kind() -> None:
    plan = make_plan()
    whole = make_loaded(plan)
    gone = {"main/000000", plan.shard_ids()[-1]}
    planned = Planned(
        plan=plan, loaded=Loaded(files={s: f for s, f in whole.files.items() if s not in gone}, damaged={})
    )
    audited = len(plan.audited)
    assert planned.committed == plan.n_shards - 1
    assert [(kind, done, total) for kind, _, done, total in planned.progress()] == [
        ("main", plan.n_shards - 1, plan.n_shards),
        ("replay", audited, audited),
        ("alone", audited, audited),
        ("reference", audited - 1, audited),
    ]


def test_a_uri_with_spaces_can_be_pasted() -> None:
    unfinished = Unfinished(uri="my runs/a", planned=Planned(plan=make_plan(), loaded=Loaded(files={}, damaged={})))
    assert "concord resume --run 'my runs/a' --nproc N" in summarize_unfinished(unfinished).decode()
    assert "concord resume --run &#39;my runs/a&#39; --nproc N" in render_unfinished(unfinished).decode()


def test_nothing_in_it_is_markup() -> None:
    damaged = Loaded(files={}, damaged={"main/000000": HOSTILE})
    for unfinished in (
        Unfinished(uri="runs/a", planned=Planned(plan=make_plan(), loaded=damaged), notes=[HOSTILE]),
        Unfinished(uri="runs/a", problem=HOSTILE, notes=[HOSTILE]),
        Unfinished(uri=HOSTILE),
    ):
        page = render_unfinished(unfinished).decode()
        assert "alert(1)" in page
        assert "<script" not in page
        for text in (page, summarize_unfinished(unfinished).decode()):
            assert "\x00" not in text
            assert "\u202e" not in text
    prose = [line for line in summarize_unfinished(unfinished).decode().splitlines() if not line.startswith("    ")]
    assert "<script" not in "\n".join(prose)


def test_an_unreadable_run_gives_no_command() -> None:
    assert Unfinished(uri="runs/a", problem="torn").commands == []


def test_every_check_is_a_row_of_its_own() -> None:
    plan = make_plan()
    verification: Verification = make_verification(plan, make_reduction(plan, make_loaded(plan)), failed=True)
    first = replace(verification.checks[0], found=HOSTILE, details=("a | b", "c\nd"))
    rows = render_checks(replace(verification, checks=(first, *verification.checks[1:]))).decode().splitlines()
    assert len(rows) == 2 + len(verification.checks)
    assert rows[2].startswith("| **coverage** Is every example counted exactly once? | failed | ")
    assert rows[2].endswith("; a \\| b; c d |")
    assert "<script" not in rows[2]
