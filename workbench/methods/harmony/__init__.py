"""Harmony (VLDB 2022): layer packs swapped through the host, their schedule found by search."""
