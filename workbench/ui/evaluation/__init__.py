"""The page that goes through all exhibits."""
