"""Tests that graphs can be written as text and read back, and that wrong text is refused."""
