"""The calculation: pure Python, no page, no network, no clock."""
