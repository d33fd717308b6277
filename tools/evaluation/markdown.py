"""Cells and tables in Markdown."""


def percent(share, digits=1):
    return f"{100 * share:.{digits}f} %"


def cap_text(cap):
    return f"{100 * cap:g} %"


def accuracy_text(row):
    """"82.1 ± 0.3 %", or "82.1 %" where there is one value only"""
    return f"{100 * row['accuracy']:.1f} ± {100 * row['ci95']:.1f} %" if row.get("ci95") is not None else \
        percent(row["accuracy"])


def count_text(value):
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def table(heading, rows):
    """Markdown; the first column to the left, the others to the right."""
    lines = ["| " + " | ".join(heading) + " |", "|---|" + "--:|" * (len(heading) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def skipped(entry):
    return f"Not measured: {entry['skipped']}."
