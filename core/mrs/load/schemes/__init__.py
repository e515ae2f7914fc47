"""Rows of quantized weights as blocks of a format in memory, one module for each scheme."""
