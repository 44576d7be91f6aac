"""The bounded memory behind the page's results and the encoders' features."""

from concurrent.futures import ThreadPoolExecutor

from captioners.recently_used import RecentlyUsed


def test_the_least_recently_used_is_forgotten_first():
    memory = RecentlyUsed(2)
    memory.keep("a", 1)
    memory.keep("b", 2)
    assert memory.get("a") == 1
    memory.keep("c", 3)
    assert list(memory) == ["a", "c"]
    assert memory.get("b") is None


def test_keeping_again_replaces_the_value_and_counts_as_use():
    memory = RecentlyUsed(2)
    for key, value in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
        memory.keep(key, value)
    assert [memory.get(key) for key in ("a", "b", "c")] == [3, None, 4]


def test_asking_for_what_was_never_kept_keeps_nothing():
    memory = RecentlyUsed(2)
    assert memory.get("a") is None
    assert len(memory) == 0


def test_a_cleared_memory_is_empty():
    memory = RecentlyUsed(2)
    memory.keep("a", 1)
    memory.clear()
    assert list(memory) == []


def test_threads_may_share_it():
    memory = RecentlyUsed(8)

    def use(number: int) -> None:
        for i in range(500):
            memory.keep((number * i) % 17, i)
            memory.get(i % 17)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(8)))
    assert len(memory) == 8
