"""The conditions of a study."""

from __future__ import annotations

from lab.study.conditions import PLAIN, Condition, order_of


def test_conditions_come_in_one_order() -> None:
    names = ["hybrid", "exact", "copy", "context:5", "naive", "intersection"]
    lengths: list[int | str] = ["auto", 4, 2]
    conditions = [*(Condition(n, k) for n in names for k in lengths), Condition(PLAIN)]
    ordered = sorted(conditions, key=order_of)
    assert [str(one) for one in ordered[:5]] == [
        "plain",
        "naive, k = 2",
        "naive, k = 4",
        "naive, k = auto",
        "context:5, k = 2",
    ]
    assert ordered[-1] == Condition("hybrid", "auto")
