"""What belongs to the process: its memory and files, turns of those who share it."""
