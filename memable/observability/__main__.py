"""Prints the table of all metrics, as docs/observability.md has it."""

from memable.observability.metrics import METRICS


def main() -> None:
    """One line a metric."""
    print("| metric | kind | labels | what it says |")  # noqa: T201
    print("|---|---|---|---|")  # noqa: T201
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        print(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")  # noqa: T201


if __name__ == "__main__":
    main()
