"""Parameters at a launch: errors name the parameter, known table entries need no range proof."""

from __future__ import annotations

import pytest

from coordgraph import Gemm, LaunchError
from coordgraph.integers import Ranges, floor_div, index_symbol
from passes import StreamK


def test_a_division_by_zero_is_named():
    with Gemm("f32").graph((8, 8, 8)).edit() as e:
        by_zero = floor_div(index_symbol("m"), index_symbol("read_c"))
        e.parameter("share", by_zero, minimum=0)
    sizes = {"m": 8, "n": 8, "k": 8}
    assert e.graph.parameters.evaluate({**sizes, "read_c": 1})["tiles_m"] == 1
    with pytest.raises(LaunchError, match=r"share = m // read_c divides by 0 in this launch"):
        e.graph.parameters.evaluate({**sizes, "read_c": 0})


def test_a_launch_with_the_entries_of_all_tables_proves_nothing(monkeypatch: pytest.MonkeyPatch):
    graph = StreamK()(Gemm("f32", grouped=True).graph((8, 8, 8)))
    parameters, given = graph.parameters, {"m": 20, "n": 8, "k": 8, "groups": 2, "workgroups": 3}
    given = {p.name: given.get(p.name, 0) for p in parameters.given}
    proofs: list[object] = []
    interval = Ranges.interval
    monkeypatch.setattr(Ranges, "interval", lambda *args: proofs.append(args) or interval(*args))
    assert parameters.launch(given, {"offsets": [0, 9, 20]})["tiles_m"] == 4
    assert not proofs
    # The entries of the tables are not known, so the assumptions are proved, not computed.
    parameters.evaluate(given)
    assert proofs
