"""How far predicted training steps are from measured ones, beside other simulators: ``make bench-training``."""

from training_truth import ANCHORS, FITTED, scores


def _number(value: float | None, form: str = "6.1f") -> str:
    return "     –" if value is None else format(value, form)


def main() -> None:
    """Print a line for each set and part, in percent but for τ."""
    print(f"{len(FITTED)} free parameters, fitted to the part 'fit' of vTrain's rows: {FITTED}")
    print("set            part   rows   mean median   bias  after      τ regret within memory  anchor")
    for row in scores():
        anchor, tau = ANCHORS[row.of], _number(row.order, "6.2f")
        errors = " ".join(map(_number, (row.mean, row.median, row.bias, row.after)))
        rest = " ".join(map(_number, (row.regret, row.covered, row.memory)))
        print(f"{row.of:14} {row.part:6} {row.count:4} {errors} {tau} {rest}  {anchor.name} {anchor.seconds}")


if __name__ == "__main__":
    main()
