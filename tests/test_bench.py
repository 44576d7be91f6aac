"""bench reports ratios in the shape that the command line promises; how fast anything is, is not tested."""

import time

from captioners.bench import Contest, run


def works(seconds: float, units: int):
    def work() -> int:
        time.sleep(seconds)
        return units

    return work


def test_a_ratio_is_the_peers_time_per_unit_over_ours():
    row = run(Contest("twice", "as much work in the same time", "thing", ours=works(0.02, 4), peer=works(0.02, 1)), repeats=3)
    assert {"name", "ours", "peer", "unit", "ratio", "spread"} <= set(row)
    assert row["unit"] == "s/thing"
    assert row["ratio"] > 1.5
    assert row["spread"] >= 0
    assert row["ours"] < row["peer"]
