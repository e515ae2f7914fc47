"""What several folders of tests share: makers of models, engines, a hub, fixtures."""
