"""Numbers formatted for people."""

from __future__ import annotations

from neoxargs.base.text import (
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_percent,
)


def test_sizes_counts_and_times() -> None:
    assert [format_bytes(number) for number in (12, 2**10, 23.04 * 2**30, 410 * 2**20, 3 * 2**40)] == [
        "12 B", "1.00 KiB", "23.0 GiB", "410 MiB", "3.00 TiB",
    ]  # fmt: skip
    assert [format_count(number) for number in (12, 4610, 20.55e9)] == ["12", "4.61 K", "20.6 B"]
    assert [format_duration(seconds) for seconds in (0.2, 46.2, 7200, 86400 * 80.2)] == [
        "200 ms", "46.2 s", "2 hours", "80.2 days",
    ]  # fmt: skip
    assert (format_percent(1, 2), format_percent(1, 1000), format_percent(1, 10**9)) == ("50 %", "0.1 %", "<0.01 %")
    assert format_percent(12345, 100) == "12,345 %"
    assert format_duration(86400 * 6214) == "6,210 days"
    assert [format_number(number) for number in (0.00073, 5.8512, 22.8e6, 4.44e14, 4e15)] == [
        "0.00073", "5.85", "22,800,000", "444,000,000,000,000", "4e+15",
    ]  # fmt: skip
