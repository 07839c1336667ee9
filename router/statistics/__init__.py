"""Statistics: values that describe a running router and its mesh at one moment."""
