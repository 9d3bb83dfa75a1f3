"""The published Harmony scheduler, faithfully: its packing rules, its estimates, its search."""
