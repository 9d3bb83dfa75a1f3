"""Figures read rows and draw them: no figure starts a run. One module per exhibit."""
