from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from codegen.lru import LRUCache


@given(st.integers(1, 5), st.lists(st.integers(0, 12), max_size=60))
def test_what_was_used_lately_is_there(limit: int, used: list[int]):
    memory = LRUCache[int, str](limit)
    for position, key in enumerate(used):
        found = memory.get(key)
        assert found in (None, str(key))
        # Fewer keys than the limit were used since this key, so it must still be cached.
        earlier = used[:position]
        if key in earlier:
            last = len(earlier) - 1 - earlier[::-1].index(key)
            if len(set(earlier[last + 1 :])) < limit:
                assert found == str(key)
        if found is None:
            assert memory.put(key, str(key)) == str(key)
        assert len(memory) <= 2 * limit


def test_what_was_not_used_for_long_is_forgotten():
    memory = LRUCache[int, str](3)
    for key in range(100):
        memory.put(key, "x")
    assert memory.get(0) is None
    assert memory.get(99) == "x"


def test_a_look_up_is_a_use():
    memory = LRUCache[str, int](3)
    for key in "abcde":
        memory.put(key, 1)
    assert memory.get("a") == 1  # a look-up makes an old key the most recently used
    for key in "fg":
        memory.put(key, 1)
    assert memory.get("a") == 1
    assert memory.get("b") is None
