"""Exhibits of Aceso (EuroSys'24)."""
