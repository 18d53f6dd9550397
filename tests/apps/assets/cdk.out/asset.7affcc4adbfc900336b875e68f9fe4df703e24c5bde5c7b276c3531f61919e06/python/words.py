"""What the layer brings."""

NOBODY = "somebody"
VERSION = "words 1"
