"""Where every byte goes, known before anything is loaded."""
