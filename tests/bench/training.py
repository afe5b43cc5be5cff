"""How far predicted training steps are from measured ones, beside other simulators: ``make bench-training``."""

from training_truth import ANCHORS, scores


def _percent(value: float | None) -> str:
    return "      –" if value is None else f"{value:6.1f}%"


def main() -> None:
    """Print a line for each set and part."""
    print(f"{'set':14} {'part':6} {'rows':>4}    mean  median    bias   τ     regret  memory  anchor")
    for row in scores():
        anchor = ANCHORS[row.of]
        tau = "   –" if row.order is None else f"{row.order:.2f}"
        print(
            f"{row.of:14} {row.part:6} {row.count:4} {_percent(row.mean)} {_percent(row.median)} {_percent(row.bias)} "
            f"{tau} {_percent(row.regret)} {_percent(row.memory)}  {anchor.name} {anchor.seconds} %"
        )


if __name__ == "__main__":
    main()
