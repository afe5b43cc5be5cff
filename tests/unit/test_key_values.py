"""Lists of KEY=VALUE: what is written is read, and what cannot be read is refused with the allowed keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.errors import UsageError
from busbw.key_values import Key, choice, number, read_key_values, split_name, whole, written, yes_or_no

KEYS = {
    "tp": Key(whole(1, 64)),
    "micro_batch": Key(whole()),
    "share": Key(number),
    "uneven": Key(yes_or_no),
    "schedule": Key(choice(("gpipe", "1f1b"))),
}
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "tp": st.integers(1, 64),
        "micro_batch": st.integers(0, 10**10 - 1),
        "share": st.floats(allow_nan=False),
        "uneven": st.booleans(),
        "schedule": st.sampled_from(["gpipe", "1f1b"]),
    },
)


@given(VALUES)
def test_values_are_read_as_they_are_written(values: dict[str, object]) -> None:
    words = {True: "yes", False: "no"}
    texts = {name: words[value] if isinstance(value, bool) else str(value) for name, value in values.items()}
    for key in (str, written):
        text = ", ".join(f"{key(name)} = {value}" for name, value in texts.items())
        assert read_key_values("layout", text, KEYS) == values


@pytest.mark.parametrize(
    "text",
    [
        *(
            "tp",
            "tp=",
            "=2",
            "tq=2",
            "tp=2,",
            "tp=2,tp=2",
            "tp=0",
            "tp=65",
            "tp=-1",
            "tp=1.5",
            "tp=٣",
            "tp=" + "9" * 400,
        ),
        *(
            "share=x",
            "share=",
            "share",
            "uneven=",
            "uneven=true",
            "schedule",
            "schedule=",
            "schedule=1F1B",
            "micro-batch=1,micro_batch=1",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_by_the_code_of_the_list(text: str) -> None:
    with pytest.raises(UsageError) as error:
        read_key_values("layout", text, KEYS, code="layout")
    assert error.value.code == "layout"
    assert "\n" not in str(error.value)


def test_a_key_that_takes_yes_needs_no_value() -> None:
    assert read_key_values("layout", "tp=2, uneven", KEYS) == {"tp": 2, "uneven": True}
    assert split_name("uneven,tp=2") == ("uneven", "tp=2"), "a name as far as the list says: layouts have no other"


def test_an_unknown_key_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError) as error:
        read_key_values("layout", "micro-batches=2", KEYS)
    assert all(word in str(error.value) for word in ("'micro-batches=2'", *map(written, KEYS)))


@pytest.mark.parametrize(
    ("text", "name", "keys"),
    [
        ("Llama 3 8B", "Llama 3 8B", ""),
        ("Llama 3 8B,layers=16,ffn=8", "Llama 3 8B", "layers=16,ffn=8"),
        ("a, b,layers=16", "a, b", "layers=16"),
        ("layers=16", "", "layers=16"),
        ("", "", ""),
    ],
)
def test_a_name_ends_before_the_first_key(text: str, name: str, keys: str) -> None:
    assert split_name(text) == (name, keys)
