"""The page of sweeps: a form, its runs, and what becomes of them."""
