"""The program that makes the demo model that sees: its pictures, its questions, its training."""
