"""The demo model: its files in `model/`, and in `train/` the program that makes them."""
