from hypothesis import given
from hypothesis import strategies as st

from core.timers import Timers


def test_keys_come_in_the_order_of_their_times_and_then_of_being_set() -> None:
    timers = Timers[str]()
    for key, due_us in (("late", 30), ("first", 10), ("second", 10), ("moved", 5)):
        timers.set(key, due_us)
    timers.set("moved", 20)
    timers.cancel("late")
    timers.cancel("never set")
    assert timers.due_us == 10
    assert timers.pop_due(9) is None
    assert [timers.pop_due(25) for _ in range(4)] == ["first", "second", "moved", None]
    assert timers.due_us is None
    assert len(timers) == 0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("set"), st.integers(0, 5), st.integers(0, 9)),
            st.tuples(st.just("cancel"), st.integers(0, 5), st.just(0)),
            st.tuples(st.just("pop"), st.just(0), st.integers(0, 9)),
        )
    )
)
def test_timers_are_a_sorted_dictionary(operations: list[tuple[str, int, int]]) -> None:
    timers = Timers[int]()
    model: dict[int, tuple[int, int]] = {}
    for number, (name, key, at_us) in enumerate(operations):
        if name == "set":
            timers.set(key, at_us)
            model[key] = (at_us, number)
        elif name == "cancel":
            timers.cancel(key)
            model.pop(key, None)
        else:
            due = min(model, key=model.__getitem__, default=None)
            expected = due if due is not None and model[due][0] <= at_us else None
            assert timers.pop_due(at_us) == expected
            if expected is not None:
                del model[expected]
        assert timers.due_us == min((at for at, _ in model.values()), default=None)
        assert len(timers) == len(model)
