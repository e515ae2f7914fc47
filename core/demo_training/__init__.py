"""Programs that train the demo models in `mrs/demo/`. They are no part of the installed package."""
