"""The words that a regular expression needs are in every text that it matches."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw_analysis.data.readers.literals import needed, words_of


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("abc", {"abc"}),
        ("ab?cd", {"cd"}),
        ("ab+cd", {"ab"}),
        ("abc{0,3}d", {"ab"}),
        (r"rank (\d+) of", {"rank "}),
        ("abc|(?:de|fgh)+i", {"abc", "de", "fgh"}),
        ("(?:abc)?de", {"de"}),
        ("(?<!abcd)ef(?=ghij)", {"ef"}),
        (r"a\.b\\c\d[xyz]+e", {r"a.b\c"}),
        (r"[\]abc]{3}de|[^]]f", {"de", "f"}),
        ("(?i:abcd)ef", {"ef"}),
        ("(?i)stuck", {"stuck"}),
        ("\\u5361\u6b7b", {"\u5361\u6b7b"}),
        ("abc|d*", set()),
        (r"\w+", set()),
    ],
)
def test_the_words_that_a_pattern_needs(pattern: str, words: set[str]) -> None:
    assert needed(pattern) == words


_PATTERNS = st.recursive(
    st.sampled_from(["ab", "ba", "a", "b", r"\w", "[ab]", "."]),
    lambda parts: st.one_of(
        st.tuples(parts, parts).map("".join),
        st.tuples(parts, parts).map(lambda both: f"({both[0]}|{both[1]})"),
        st.tuples(parts, st.sampled_from(["?", "*", "+", "{0,1}", "{1,2}"])).map(
            lambda counted: f"(?:{counted[0]}){counted[1]}"
        ),
    ),
    max_leaves=6,
)


@given(_PATTERNS, st.text("ab", max_size=8))
def test_what_matches_has_one_of_the_words(pattern: str, text: str) -> None:
    words = needed(pattern)
    assert not words or re.search(pattern, text) is None or any(word in text for word in words)


def test_a_word_within_another_is_enough_and_a_pattern_without_words_is_refused() -> None:
    assert words_of(["abc", "xbcx|y"]) == ("abc", "xbcx", "y")
    assert words_of(["bc", "abcd"]) == ("bc",)
    with pytest.raises(ValueError, match="any text"):
        words_of([r"\d*"])
