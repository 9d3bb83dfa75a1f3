"""The exhibits of Harmony (VLDB'22): what is shared, and a module for each figure and table."""
