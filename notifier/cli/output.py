"""What commands share: examples in their help, JSON for scripts, a calm console for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table


def example(*lines: str) -> str:
    """The epilog that ends a command's help: lines one can copy into a shell."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def emit_json(value: Any) -> None:
    """One JSON value on one line of stdout, for scripts."""
    click.echo(json.dumps(value, allow_nan=False, default=str))


def console(*, stderr: bool = False) -> Console:
    """A console that neither invents colours nor guesses at numbers. Made when used: tests replace stdout."""
    return Console(highlight=False, markup=False, stderr=stderr, soft_wrap=False)


def rows(headers: Sequence[str], cells: Iterable[Sequence[str]]) -> Iterator[str]:
    """Aligned lines, as long as they are: nothing is cut or wrapped, so that an id can be copied."""
    table = [list(headers), *([printable(cell) for cell in line] for line in cells)]
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    for line in table:
        padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True))
        yield "  ".join(padded).rstrip()


def many(count: int, noun: str) -> str:
    """`1 problem`, `2,000 problems`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def printable(text: str) -> str:
    """Without what would move a terminal's cursor: ids and errors come from outside."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def plain_table(*headers: str) -> Table:
    """A borderless table; columns wrap rather than lose text."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in headers:
        table.add_column(header, overflow="fold")
    return table
