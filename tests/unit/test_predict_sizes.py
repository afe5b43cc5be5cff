"""What answers each size of a prediction, and that it is the same whatever other sizes are asked for beside it."""

from testing.synthetic import Machine, Piece, World, case, synthetic_run

from busbw_analysis.predict.selection import measured_curves, query, read_results
from busbw_analysis.predict.ways import Prediction, Ways

MIB = 1 << 20
SMALL, LARGE = 64, 1024 * MIB
SIZES = tuple(64 << step for step in range(0, 20, 2))


def answer(*sizes: int) -> Prediction:
    """From a curve that does not grow with size, and messages."""
    runs = [
        synthetic_run(
            [case(op, size, ranks) for op in ("all_reduce", "ping_pong") for size in SIZES],
            World(by_op={"all_reduce": (Piece(2e-3, -2e-12),), "ping_pong": (Piece(1e-5, 1e-9),)}),
            machine=Machine(usable_cores=64),
            launches=2,
            seed=ranks,
        )
        for ranks in (3, 4)
    ]
    ways = Ways(measured_curves(read_results(runs), "all_reduce"))
    return ways.predict(query(ways.data, 16, sizes))


def test_messages_answer_the_sizes_of_which_no_curve_tells() -> None:
    found = answer(SMALL, LARGE // 2, LARGE)
    assert [one.basis for one in found.forecasts] == ["carried", "messages", "messages"]
    assert not found.unanswered
    for one in found.forecasts:
        (alone,) = answer(one.size_bytes).forecasts
        assert (alone.seconds, alone.basis, alone.held_out) == (one.seconds, one.basis, one.held_out)
