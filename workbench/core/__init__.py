"""The ground floor: plain facts that every other package may import. Imports nothing of ours."""
