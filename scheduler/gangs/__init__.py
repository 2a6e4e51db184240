"""Places the pods of a gang together or not at all."""
