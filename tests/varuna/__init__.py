"""Tests of Varuna as a library."""
