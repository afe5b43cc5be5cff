"""Sizes, rates and times: what people may write, and what they get to read."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw import units
from busbw.errors import UsageError

LARGEST = (1 << 63) - 1


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("0", 0), ("8", 8), ("8B", 8), (" 64 KiB ", 65536), ("1.5GiB", 3 << 29), ("0.5KiB", 512)]
)
def test_a_size_is_bytes_or_a_binary_unit(text: str, size_bytes: int) -> None:
    assert units.parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "KiB", "-8", "8 8", "1e3", "0x10", "1.5", "0.3KiB", "1.KiB", ".5KiB", "٣", "nan", "inf", "9" * 5000]
)
def test_what_is_not_a_size_is_refused_with_the_text_that_was_given(text: str) -> None:
    with pytest.raises(UsageError, match="size"):
        units.parse_size(text)


@pytest.mark.parametrize(("text", "hint"), [("1M", "1MiB"), ("4MB", "4MiB"), ("2g", "2GiB"), ("1.5kb", "1.5KiB")])
def test_a_unit_that_two_people_read_differently_is_refused_with_a_hint(text: str, hint: str) -> None:
    with pytest.raises(UsageError, match=hint):
        units.parse_size(text)


@pytest.mark.parametrize(("text", "equal"), [("82GB", 82 * 10**9), ("1.5kb", 1500), ("4M", 4 * 10**6)])
def test_the_first_size_of_a_hint_is_the_amount_that_was_given(text: str, equal: int) -> None:
    with pytest.raises(UsageError, match=rf"did you mean {equal} \("):
        units.parse_size(text)


def test_a_binary_unit_in_another_case_means_nothing_else() -> None:
    with pytest.raises(UsageError, match="did you mean 64KiB"):
        units.parse_size("64kib")


def test_a_size_beyond_any_buffer_is_refused() -> None:
    assert units.parse_size(str(LARGEST)) == LARGEST
    with pytest.raises(UsageError, match=str(LARGEST)):
        units.parse_size(str(LARGEST + 1))


@given(st.integers(0, LARGEST))
def test_every_size_survives_being_written_and_read(size_bytes: int) -> None:
    assert units.parse_size(units.format_size(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1 << 20, "1 MiB"),
        (3 << 19, "1.5 MiB"),
        (1025, "1025 B"),
        (1234567 << 40, "1234567 TiB"),
        ((1 << 60) + 1, "1152921504606846977 B"),
    ],
)
def test_a_size_is_printed_without_loss(size_bytes: int, text: str) -> None:
    assert units.format_size(size_bytes) == text


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("8,1KiB,1MiB", (8, 1024, 1 << 20)),
        ("8..100*2", (8, 16, 32, 64)),
        ("8 .. 64 * 2", (8, 16, 32, 64)),
        ("1..10*1.5", (1, 2, 3, 5, 8)),
        ("1.5KiB..6KiB*2", (1536, 3072, 6144)),
        ("1MiB..2MiB+512KiB", (1 << 20, 3 << 19, 2 << 20)),
        ("0..4+2", (0, 2, 4)),
        ("5..5*2", (5,)),
        ("4,8..16*2,1KiB", (4, 8, 16, 1024)),
    ],
)
def test_a_sweep_is_ascending_and_without_repeats(text: str, sizes: tuple[int, ...]) -> None:
    assert units.parse_sizes(text) == sizes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected bytes"),
        ("8,,16", "expected bytes"),
        ("1MiB-1GiB", "range"),
        ("8..64", "factor"),
        ("64..8*2", "ascending"),
        ("0..8*2", "start"),
        ("8..64*1", "above 1"),
        ("8..64*two", "above 1"),
        ("8..64+0", "step"),
        ("1..1GiB+1", "more than"),
        ("1..1GiB*1.0000001", "more than"),
    ],
)
def test_a_sweep_that_cannot_be_meant_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        units.parse_sizes(text)


@given(st.integers(1, 1 << 20), st.integers(0, 1 << 30), st.floats(1.05, 64))
def test_a_geometric_range_stays_inside_its_ends(low: int, more: int, factor: float) -> None:
    sizes = units.parse_sizes(f"{low}..{low + more}*{factor!r}")
    assert sizes[0] == low
    assert sizes[-1] <= low + more
    assert all(before < after for before, after in itertools.pairwise(sizes))


@given(st.text(max_size=40))
def test_no_text_does_worse_than_being_refused(text: str) -> None:
    try:
        sizes = units.parse_sizes(text)
    except UsageError:
        return
    assert list(sizes) == sorted(set(sizes))


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (None, "–"),
        (0.0, "0 B/s"),
        (999.9, "1 kB/s"),
        (1.25e10, "12.5 GB/s"),
        (999.6e6, "1 GB/s"),
        (999.4e6, "999 MB/s"),
        (3.2e15, "3200 TB/s"),
        (-5e9, "-5 GB/s"),
        (float("inf"), "inf TB/s"),
    ],
)
def test_a_rate_is_decimal_with_three_digits(rate: float | None, text: str) -> None:
    assert units.format_rate(rate) == text


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0 ns"),
        (0.25, "0.25 ns"),
        (1000, "1 µs"),
        (999_999, "1 ms"),
        (1_234_567, "1.23 ms"),
        (-1_234_567, "-1.23 ms"),
        (4321e9, "4320 s"),
    ],
)
def test_a_time_has_three_digits(nanoseconds: float, text: str) -> None:
    assert units.format_time(nanoseconds) == text


@given(st.floats(1, 1e18))
def test_what_is_printed_is_within_half_a_percent(value: float) -> None:
    number, unit = units.format_time(value).split()
    factor = {"s": 1e9, "ms": 1e6, "µs": 1e3, "ns": 1.0}[unit]
    assert float(number) * factor == pytest.approx(value, rel=0.0051)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (8.4, "8 s"), (59.6, "1 min 0 s"), (185, "3 min 5 s"), (7800, "2 h 10 min"), (3600, "1 h 0 min")],
)
def test_a_span_is_what_a_person_would_say(seconds: float, text: str) -> None:
    assert units.format_span(seconds) == text


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-3,8", (0, 1, 2, 3, 8)), ("5", (5,)), ("", ()), (" 1 ", (1,)), ("3-3", (3,))]
)
def test_lists_of_cores_are_read_as_the_kernel_writes_them(text: str, numbers: tuple[int, ...]) -> None:
    assert units.numbers_in(text) == numbers


@pytest.mark.parametrize("text", ["a", "3-1", "1,", ",", "-1", "1-", "0-9999999", "0-600000,0-600000", "٣", "1" * 5000])
def test_what_is_no_list_of_cores_has_no_numbers(text: str) -> None:
    assert units.numbers_in(text) is None


@given(st.sets(st.integers(0, 300)))
def test_a_list_of_numbers_comes_back_as_it_was(numbers: set[int]) -> None:
    assert units.numbers_in(units.number_list(numbers)) == tuple(sorted(numbers))


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (34752, "33.9 KiB"),
        (1 << 20, "1 MiB"),
        (1023 << 10, "1023 KiB"),
        (800, "800 B"),
        (1023, "1023 B"),
        (999.6 * (1 << 30), "1000 GiB"),
        (3.5 * (1 << 40), "3.5 TiB"),
    ],
)
def test_a_size_that_need_not_be_exact_has_three_digits(size_bytes: float, text: str) -> None:
    assert units.about_size(size_bytes) == text


@pytest.mark.parametrize(
    ("text", "bytes_per_second"),
    [("50GB/s", 5e10), ("400Gb/s", 5e10), ("12.5 MB/s", 12.5e6), ("8b/s", 1.0), ("1kB/s", 1e3), (" 2TB/s ", 2e12)],
)
def test_rates_are_read_in_bytes_and_in_bits(text: str, bytes_per_second: float) -> None:
    assert units.parse_rate(text) == pytest.approx(bytes_per_second)


def test_what_is_no_rate_or_time_is_refused_in_words() -> None:
    rates = ("50", "GB/s", "50GB", "50GiB/s", "-1GB/s", "1e9B/s", "0GB/s", "0.0b/s", "nanGB/s", "infGB/s", "", "1 2B/s")
    times = ("2", "us", "2min", "-1us", "1e-6s", "", "2 u s")
    for parse, text in (*itertools.product([units.parse_rate], rates), *itertools.product([units.parse_time], times)):
        with pytest.raises(UsageError):
            parse(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("2us", 2e-6), ("1.5 µs", 1.5e-6), ("0ns", 0.0), ("3ms", 3e-3), ("1s", 1.0)]
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert units.parse_time(text) == pytest.approx(seconds)


@pytest.mark.parametrize(("text", "seconds"), [("0.5", 0.5), ("500ms", 0.5), ("2min", 120.0), ("1e3", 1e3)])
def test_a_time_without_a_unit_is_one_of_seconds(text: str, seconds: float) -> None:
    assert units.parse_seconds(text) == pytest.approx(seconds)
    with pytest.raises(UsageError):
        units.parse_seconds(f"{text}x")


def test_numbers_have_their_nouns() -> None:
    assert [units.counted(count, "case") for count in (0, 1, 2)] == ["0 cases", "1 case", "2 cases"]
    assert units.counted(2, "launch", "launches") == "2 launches"


@pytest.mark.parametrize(
    ("texts", "most", "expected"),
    [
        ("", None, ""),
        ("a", None, "a"),
        ("ab", None, "a and b"),
        ("abc", None, "a, b and c"),
        ("abc", 2, "a, b and c"),
        ("abcd", 2, "a, b and 2 more"),
    ],
)
def test_what_is_listed_is_counted_beyond_a_number(texts: str, most: int | None, expected: str) -> None:
    assert units.listed(texts, most) == expected
