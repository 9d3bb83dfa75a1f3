"""The exhibits of Varuna (EuroSys'22): a module for each."""
