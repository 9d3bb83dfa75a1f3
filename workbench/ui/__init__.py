"""The interactive side: controllers that know no widgets, and panels that show them."""
